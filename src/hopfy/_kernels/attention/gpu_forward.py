# mypy: ignore-errors
"""Attention in Triton, forward: thresholds of all rows, then their outputs."""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.attention.gpu_blocks import (
    block_scores,
    first_pair,
    first_row,
    is_visible,
    kept,
    last_block,
    listed,
    load_rows,
    of_group,
    place,
    product,
    query_block,
    store_rows,
    visited,
)
from hopfy._kernels.attention.gpu_maps import margin_of, solve_rows, subset_bracket, weights_of
from hopfy._kernels.threshold.gpu import INFINITY

__all__ = ["factors_kernel", "output_kernel", "row_state", "threshold_kernel"]


@triton.jit
def threshold_kernel(inputs, own, conditions, rows, lists, sizes, PLAN: tl.constexpr):
    block, head, across, total = place(sizes, PLAN)
    source, there, row, own = query_block(inputs, own, head, block, sizes, conditions, PLAN)
    order = lists[0] + first_pair(head, block, across, sizes)
    if PLAN.KIND == 2:
        end = last_block(source)
        top, spoiled = _tops(source, end, PLAN)
        ready = there & (top > -INFINITY) & ~spoiled
        top = tl.where(ready, top, 0.0)
        extra = subset_bracket(visited, source, end, ready, top, own, PLAN)
        floor = tl.where(extra[0] > 0, top + extra[1], -INFINITY)  # others take all, or nothing
        floor = tl.where(ready, floor, INFINITY)
        tiles = _list_above(source, order, floor, end)
        top = tl.where(there & ~ready, -INFINITY, top)
    else:
        margin = margin_of(own, PLAN.KIND)
        top, spoiled, tiles = _list_near(source, order, margin, there, PLAN)
        ready = there & (top > -INFINITY) & ~spoiled
        extra = (0,)
    tl.debug_barrier()  # other threads of this program read the list
    safe = tl.where(ready, top, 0.0)
    first, second = solve_rows(listed, (source, order), tiles, ready, safe, own, extra, PLAN)
    tl.store(lists[1] + tl.program_id(0), tiles)
    tl.store(rows + row, tl.where(spoiled, float("nan"), top), mask=there)
    tl.store(rows + total + row, first, mask=there)
    tl.store(rows + 2 * total + row, second, mask=there)


@triton.jit
def _tops(source, end, PLAN: tl.constexpr):
    """Maxima of all rows, and whether a row holds NaN or +inf."""
    top = tl.full((PLAN.BM,), -INFINITY, tl.float32)
    spoiled = tl.zeros((PLAN.BM,), tl.int32)
    for n in range(end):
        if is_visible(source, n):
            top, spoiled, _ = _seen(block_scores(source, n), top, spoiled)
    return top, spoiled > 0


@triton.jit
def _list_near(source, order, margin, there, PLAN: tl.constexpr):
    """Maxima, spoiled rows, and the list of key blocks within the margin of the maximum so far.

    What is a margin below a maximum has no weight, whatever follows.
    """
    top = tl.full((PLAN.BM,), -INFINITY, tl.float32)
    spoiled = tl.zeros((PLAN.BM,), tl.int32)
    tiles = 0
    for n in range(last_block(source)):
        if is_visible(source, n):
            top, spoiled, best = _seen(block_scores(source, n), top, spoiled)
            near = there & (best > -INFINITY) & (best >= top - margin)
            if tl.max(near.to(tl.int32), 0) > 0:
                tl.store(order + tiles, n)
                tiles += 1
    return top, spoiled > 0, tiles


@triton.jit
def _list_above(source, order, floor, end):
    """The list of key blocks with a score at the floor of its row or above."""
    tiles = 0
    for n in range(end):
        if is_visible(source, n):
            best = tl.max(block_scores(source, n), 1)
            if tl.max(((best >= floor) & (best > -INFINITY)).to(tl.int32), 0) > 0:
                tl.store(order + tiles, n)
                tiles += 1
    return tiles


@triton.jit
def _seen(scores, top, spoiled):
    """Maxima and spoiled rows with one more block, and the maxima of the block alone."""
    bad = (scores != scores) | (scores == INFINITY)
    best = tl.max(tl.where(bad, -INFINITY, scores), 1)
    return tl.maximum(top, best), tl.maximum(spoiled, tl.max(bad.to(tl.int32), 1)), best


@triton.jit
def output_kernel(
    inputs, output, own, conditions, dropout, rows, lists, used, sizes, PLAN: tl.constexpr
):
    block, head, across, found = place(sizes, PLAN)
    source, there, row, own = query_block(inputs, own, head, block, sizes, conditions, PLAN)
    values = of_group(inputs[2], head, sizes, PLAN.E)
    begin = first_pair(head, block, across, sizes)
    top, first, second = _thresholds(rows, row, there, found)
    ready = top > -INFINITY
    total = tl.zeros((PLAN.BM,), tl.float32)
    result = tl.zeros((PLAN.BM, PLAN.WIDTH), tl.float32)
    columns = tl.arange(0, PLAN.BN)
    for i in range(tl.load(lists[1] + tl.program_id(0))):
        n = tl.load(lists[0] + begin + i)
        p = weights_of(block_scores(source, n), (top, first, second, total), own, PLAN)
        p = tl.where(ready[:, None], p, 0.0)
        if tl.max(tl.max(p, 1), 0) > 0.0:
            total += tl.sum(p, 1)
            if PLAN.DROP:
                p *= kept(dropout, head, source[6], n, columns)
            inside = n * PLAN.BN + columns < sizes[1]
            v = load_rows(values, n * PLAN.BN, inside, PLAN.E, PLAN.WIDTH, PLAN.UPCAST)
            result += product(p.to(v.dtype), v)
            tl.store(used + begin + n, 1)
    if PLAN.KIND == 2:
        total = tl.full((PLAN.BM,), 1.0, tl.float32)
    else:
        total = tl.where(total > 0.0, total, 1.0)
    result = tl.where((top != top)[:, None], float("nan"), result / total[:, None])
    at = first_row(head, block, sizes, PLAN)
    store_rows(output, at, there, result, PLAN.E, PLAN.WIDTH)
    tl.store(rows + 3 * found + row, total, mask=there)


@triton.jit
def _thresholds(rows, row, there, found):
    top = tl.load(rows + row, mask=there, other=-INFINITY)
    first = tl.load(rows + found + row, mask=there, other=1.0)
    second = tl.load(rows + 2 * found + row, mask=there, other=1.0)
    return top, first, second


@triton.jit
def row_state(rows, row, there, found):
    """Top score, two numbers of the threshold, and the sum of the weights, for each row."""
    top, first, second = _thresholds(rows, row, there, found)
    return top, first, second, tl.load(rows + 3 * found + row, mask=there, other=1.0)


@triton.jit
def factors_kernel(factors, dropout, period, count, BM: tl.constexpr, BN: tl.constexpr):
    """What dropout multiplies each weight (heads, period, count) with."""
    across, along = tl.cdiv(period, BM), tl.cdiv(count, BN)
    program = tl.program_id(0)
    block, n = program % across, program // across % along
    head = program // (across * along)
    m, columns = block * BM + tl.arange(0, BM), tl.arange(0, BN)
    key = n * BN + columns
    at = (head.to(tl.int64) * period + m)[:, None] * count + key[None, :]
    inside = (m < period)[:, None] & (key < count)[None, :]
    tl.store(factors + at, kept(dropout, head, m, n, columns), mask=inside)
