# mypy: ignore-errors
"""Blocks of an attention matrix as a source of tiles for the searches of `threshold.gpu`."""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.threshold.gpu import INFINITY

__all__ = ["block_scores", "listed", "row_numbers"]


@triton.jit
def row_numbers(period, BM: tl.constexpr):
    """This program's block, head, positions (BM,), rows among all rows, and whether they exist."""
    block, head = tl.program_id(0), tl.program_id(1)
    m = block * BM + tl.arange(0, BM)
    return block, head, m, head.to(tl.int64) * period + m, m < period


@triton.jit
def listed(source, j):
    """The scores of the j-th block on the list, for `threshold.gpu`."""
    blocks, order = source
    return block_scores(blocks, tl.load(order + j))


@triton.jit
def block_scores(source, n):
    """Scores (BM, BN) of this program's queries and key block n; -inf where a key is not visible."""
    q, keys, count, _, scale, head, _, m, period, conditions, d, columns = source
    mask, mask_of, _, mask_height, bias, bias_of, bias_height, offset = conditions
    key = n * columns.shape[0] + columns
    size = tl.arange(0, q.shape[1])
    there = (key < count)[None, :]
    at = keys + tl.cast(n, tl.int64) * columns.shape[0] * d + (columns[None, :] * d + size[:, None])
    k = tl.load(at, mask=there & (size < d)[:, None], other=0.0).to(q.dtype)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    seen = (m < period)[:, None] & there
    if bias is not None:
        at = _entries(bias, bias_of, bias_height, head, m, key, count)
        scores += tl.load(at, mask=seen, other=0.0).to(tl.float32)
    visible = seen
    if offset is not None:
        visible = visible & (key[None, :] <= m[:, None] + offset)
    if mask is not None:
        at = _entries(mask, mask_of, mask_height, head, m, key, count)
        visible = visible & (tl.load(at, mask=seen, other=0) != 0)
    return tl.where(visible, scores, -INFINITY)


@triton.jit
def _entries(pointer, which, height, head, m, key, count):
    """Where the entries (BM, BN) of this head's mask or bias are; one row may serve all queries."""
    row = tl.load(which + head).to(tl.int64) * height + tl.minimum(m, height - 1)
    return pointer + row[:, None] * count + key[None, :]
