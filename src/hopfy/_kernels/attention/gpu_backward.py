# mypy: ignore-errors
"""Attention in Triton, backward: gradients of queries and parameters, then of keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.attention.gpu_blocks import (
    block_scores,
    first_pair,
    first_row,
    held_rows,
    kept,
    load_rows,
    of_group,
    place,
    product,
    product_of_rows,
    product_of_slopes,
    query_block,
    store_rows,
)
from hopfy._kernels.attention.gpu_forward import row_state
from hopfy._kernels.attention.gpu_maps import (
    means_of,
    parameter_slopes,
    row_sums,
    steepest,
    through,
    weights_of,
)
from hopfy._kernels.threshold.gpu import INFINITY

__all__ = ["keys_kernel", "queries_kernel"]


@triton.jit
def queries_kernel(
    inputs,
    cotangent,
    outputs,
    own,
    conditions,
    dropout,
    rows,
    sums,
    lists,
    used,
    sizes,
    PLAN: tl.constexpr,
):
    in_queries, in_parameter = outputs
    block, head, across, found = place(sizes, PLAN)
    source, there, row, own = query_block(inputs, own, head, block, sizes, conditions, PLAN)
    at = first_row(head, block, sizes, PLAN)
    outside = held_rows(cotangent, at, there, PLAN.E, PLAN.WIDTH, PLAN)
    keys = of_group(inputs[1], head, sizes, PLAN.D)
    values = of_group(inputs[2], head, sizes, PLAN.E)
    begin = first_pair(head, block, across, sizes)
    order = lists[0] + begin
    used += begin
    state = row_state(rows, row, there, found)
    tiles = tl.load(lists[1] + tl.program_id(0))
    zero = tl.zeros((PLAN.BM,), tl.float32)
    partial = (zero, zero, zero, zero)
    edge = tl.where(own[0] > 1.0, 1.0, 0.0)
    for i in range(tiles):
        n = tl.load(order + i)
        if tl.load(used + n) != 0:
            p, v, _ = _block(source, n, state, own, outside, values, dropout, PLAN)
            partial = row_sums(partial, p, v, state, own, PLAN)
            if PLAN.WANTED and PLAN.KIND != 2:
                edge = steepest(edge, p, own)
    center, total, extra = means_of(partial, PLAN)
    result = tl.zeros((PLAN.BM, PLAN.WIDTH), tl.float32)
    slope = tl.zeros((PLAN.BM,), tl.float32)
    if PLAN.WANTED and PLAN.KIND != 2:
        at_edge = parameter_slopes(edge[:, None], state, extra, own, PLAN)
    for i in range(tiles):
        n = tl.load(order + i)
        if tl.load(used + n) != 0:
            p, v, _ = _block(source, n, state, own, outside, values, dropout, PLAN)
            ds = through(p, v, center, total, state, own, PLAN)
            inside = n * PLAN.BN + tl.arange(0, PLAN.BN) < sizes[1]
            here = load_rows(keys, n * PLAN.BN, inside, PLAN.D, PLAN.WIDTH, PLAN.UPCAST)
            result += product_of_slopes(ds, here, PLAN)
            if PLAN.WANTED and PLAN.KIND != 2:
                # The slopes ds of a row add up to 0: beside the steepest they keep their digits.
                change = parameter_slopes(p, state, extra, own, PLAN) - at_edge
                slope -= tl.sum(change * ds, 1)
    spoiled = state[0] != state[0]
    scale = conditions[0]
    result = tl.where(spoiled[:, None], float("nan"), result * scale)
    store_rows(in_queries, at, there, result, PLAN.D, PLAN.WIDTH)
    tl.store(sums + row, center, mask=there)
    tl.store(sums + found + row, total, mask=there)
    if PLAN.WANTED:
        if PLAN.KIND == 2:  # one more unit is shared by the entries between 0 and 1
            slope = tl.where(extra > 0.0, center + total, 0.0)
        tl.store(in_parameter + row, tl.where(spoiled, float("nan"), slope), mask=there)


@triton.jit
def keys_kernel(
    inputs,
    cotangent,
    outputs,
    own,
    conditions,
    dropout,
    rows,
    sums,
    used,
    sizes,
    PLAN: tl.constexpr,
):
    period, count, repeat, along = sizes
    n, group = tl.program_id(0) % along, tl.program_id(0) // along
    values = inputs[2] + group.to(tl.int64) * count * PLAN.E
    found = period * (tl.num_programs(0) // along).to(tl.int64) * repeat
    blocks = tl.cdiv(period, PLAN.BM)
    in_key = tl.zeros((PLAN.BN, PLAN.WIDTH), tl.float32)
    in_value = tl.zeros((PLAN.BN, PLAN.WIDTH), tl.float32)
    for i in range(repeat * blocks):
        head = group * repeat + i // blocks
        block = i % blocks
        if tl.load(used + first_pair(head, block, blocks, sizes) + n) != 0:
            source, there, row, numbers = query_block(
                inputs, own, head, block, sizes, conditions, PLAN
            )
            at = first_row(head, block, sizes, PLAN)
            outside = held_rows(cotangent, at, there, PLAN.E, PLAN.WIDTH, PLAN)
            state = row_state(rows, row, there, found)
            p, v, dropped = _block(source, n, state, numbers, outside, values, dropout, PLAN)
            center = tl.load(sums + row, mask=there, other=0.0)
            total = tl.load(sums + found + row, mask=there, other=0.0)
            ds = through(p, v, center, total, state, numbers, PLAN)
            outside = load_rows(cotangent, at, there, PLAN.E, PLAN.WIDTH, PLAN.UPCAST)
            in_value += product(tl.trans(dropped).to(outside.dtype), outside)
            q = load_rows(inputs[0], at, there, PLAN.D, PLAN.WIDTH, PLAN.UPCAST)
            in_key += product_of_slopes(tl.trans(ds), q, PLAN)
    inside = n * PLAN.BN + tl.arange(0, PLAN.BN) < count
    at = group.to(tl.int64) * count + n * PLAN.BN
    store_rows(outputs[0], at, inside, in_key * conditions[0], PLAN.D, PLAN.WIDTH)
    store_rows(outputs[1], at, inside, in_value, PLAN.E, PLAN.WIDTH)


@triton.jit
def _block(source, n, state, own, outside, values, dropout, PLAN: tl.constexpr):
    """Weights of a block, the cotangent of each, and the weights that dropout leaves."""
    _, _, count, _, head, _, m, period, _, _, columns, chunk = source
    top, _, _, total = state
    p = weights_of(block_scores(source, n), state, own, PLAN)
    p = tl.where((top > -INFINITY)[:, None], p / total[:, None], 0.0)
    inside = n * PLAN.BN + columns < count
    v = product_of_rows(outside, m < period, values, n * PLAN.BN, inside, PLAN.E, chunk)
    if PLAN.DROP:
        factors = kept(dropout, head, m, n, columns)
        return p, v * factors, p * factors
    else:
        return p, v, p
