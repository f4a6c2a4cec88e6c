# mypy: ignore-errors
"""Attention in Triton, backward: gradients of queries and parameters, then of keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.attention.gpu_blocks import (
    block_scores,
    held_rows,
    kept,
    load_own,
    load_rows,
    product,
    product_of_rows,
    query_source,
    store_rows,
)
from hopfy._kernels.attention.gpu_forward import row_state
from hopfy._kernels.attention.gpu_maps import (
    means_of,
    parameter_slopes,
    row_sums,
    through,
    weights_of,
)
from hopfy._kernels.threshold.gpu import INFINITY

__all__ = ["keys_kernel", "queries_kernel"]


@triton.jit
def queries_kernel(
    queries,
    keys,
    values,
    cotangent,
    in_queries,
    in_parameter,
    own,
    stride,
    conditions,
    dropout,
    rows,
    sums,
    lists,
    used,
    sizes,
    PLAN: tl.constexpr,
):
    period, count, repeat, along = sizes
    order, counts = lists
    block, head = tl.program_id(0), tl.program_id(1)
    source = query_source(queries, keys, head, block, sizes, conditions, PLAN)
    m = block * PLAN.BM + tl.arange(0, PLAN.BM)
    there = m < period
    row = head.to(tl.int64) * period + m
    at = head.to(tl.int64) * period + block * PLAN.BM
    own = load_own(own, stride, row, there, PLAN)
    outside = held_rows(cotangent, at, there, PLAN.E, PLAN.BE, PLAN)
    group = (head // repeat).to(tl.int64)
    keys += group * count * PLAN.D
    values += group * count * PLAN.E
    order += (head.to(tl.int64) * tl.num_programs(0) + block) * along
    used += (head.to(tl.int64) * tl.num_programs(0) + block) * along
    found = period * tl.num_programs(1).to(tl.int64)
    state = row_state(rows, row, there, found)
    tiles = tl.load(counts + head * tl.num_programs(0) + block)
    zero = tl.zeros((PLAN.BM,), tl.float32)
    partial = (zero, zero, zero, zero)
    for i in range(tiles):
        n = tl.load(order + i)
        if tl.load(used + n) != 0:
            p, v, _ = _block(source, n, state, own, outside, values, dropout, PLAN)
            partial = row_sums(partial, p, v, state, own, PLAN)
    center, total, extra = means_of(partial, PLAN)
    result = tl.zeros((PLAN.BM, PLAN.BD), tl.float32)
    slope = tl.zeros((PLAN.BM,), tl.float32)
    for i in range(tiles):
        n = tl.load(order + i)
        if tl.load(used + n) != 0:
            p, v, _ = _block(source, n, state, own, outside, values, dropout, PLAN)
            ds = through(p, v, center, total, state, own, PLAN)
            inside = n * PLAN.BN + tl.arange(0, PLAN.BN) < count
            here = load_rows(keys, n * PLAN.BN, inside, PLAN.D, PLAN.BD, PLAN.UPCAST)
            result += product(ds.to(here.dtype), here)
            if PLAN.WANTED and PLAN.KIND != 2:
                slope -= tl.sum(parameter_slopes(p, state, extra, own, PLAN) * ds, 1)
    spoiled = state[0] != state[0]
    scale = conditions[0]
    result = tl.where(spoiled[:, None], float("nan"), result * scale)
    store_rows(in_queries, at, there, result, PLAN.D, PLAN.BD)
    tl.store(sums + row, center, mask=there)
    tl.store(sums + found + row, total, mask=there)
    if PLAN.WANTED:
        if PLAN.KIND == 2:  # one more unit is shared by the entries between 0 and 1
            slope = tl.where(extra > 0.0, center + total, 0.0)
        tl.store(in_parameter + row, tl.where(spoiled, float("nan"), slope), mask=there)


@triton.jit
def keys_kernel(
    queries,
    keys,
    values,
    cotangent,
    in_keys,
    in_values,
    own,
    stride,
    conditions,
    dropout,
    rows,
    sums,
    used,
    sizes,
    PLAN: tl.constexpr,
):
    period, count, repeat, along = sizes
    n = tl.program_id(0)
    group = tl.program_id(1).to(tl.int64)
    values += group * count * PLAN.E
    found = period * tl.num_programs(1).to(tl.int64) * repeat
    blocks = tl.cdiv(period, PLAN.BM)
    in_key = tl.zeros((PLAN.BN, PLAN.BD), tl.float32)
    in_value = tl.zeros((PLAN.BN, PLAN.BE), tl.float32)
    for i in range(repeat * blocks):
        head = tl.program_id(1) * repeat + i // blocks
        block = i % blocks
        if tl.load(used + (head.to(tl.int64) * blocks + block) * along + n) != 0:
            source = query_source(queries, keys, head, block, sizes, conditions, PLAN)
            m = block * PLAN.BM + tl.arange(0, PLAN.BM)
            there = m < period
            row = head.to(tl.int64) * period + m
            at = head.to(tl.int64) * period + block * PLAN.BM
            numbers = load_own(own, stride, row, there, PLAN)
            outside = held_rows(cotangent, at, there, PLAN.E, PLAN.BE, PLAN)
            state = row_state(rows, row, there, found)
            p, v, dropped = _block(source, n, state, numbers, outside, values, dropout, PLAN)
            center = tl.load(sums + row, mask=there, other=0.0)
            total = tl.load(sums + found + row, mask=there, other=0.0)
            ds = through(p, v, center, total, state, numbers, PLAN)
            outside = load_rows(cotangent, at, there, PLAN.E, PLAN.BE, PLAN.UPCAST)
            in_value += product(tl.trans(dropped).to(outside.dtype), outside)
            q = load_rows(queries, at, there, PLAN.D, PLAN.BD, PLAN.UPCAST)
            in_key += product(tl.trans(ds).to(q.dtype), q)
    inside = n * PLAN.BN + tl.arange(0, PLAN.BN) < count
    at = group * count + n * PLAN.BN
    store_rows(in_keys, at, inside, in_key * conditions[0], PLAN.D, PLAN.BD)
    store_rows(in_values, at, inside, in_value, PLAN.E, PLAN.BE)


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
