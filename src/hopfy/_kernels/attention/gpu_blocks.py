# mypy: ignore-errors
"""Blocks of an attention matrix: loads, products, scores with masks and biases, dropout.

A program that holds BM queries knows them as a ``source``: a tuple that `block_scores` reads, and that
the searches of `hopfy._kernels.threshold.gpu` visit block by block through `listed`.

Addresses are an int64 number for the block and int32 offsets inside it: half the registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.threshold.gpu import INFINITY

__all__ = [
    "block_scores",
    "first_pair",
    "first_row",
    "held_rows",
    "is_visible",
    "kept",
    "last_block",
    "listed",
    "load_rows",
    "of_group",
    "place",
    "product",
    "product_of_rows",
    "product_of_slopes",
    "query_block",
    "store_rows",
    "visited",
]


@triton.jit
def load_rows(pointer, first, there, size: tl.constexpr, B: tl.constexpr, UPCAST: tl.constexpr):
    """Rows ``first ..`` (len(there), B) of a matrix with ``size`` columns, zeros outside."""
    row, column = tl.arange(0, there.shape[0]), tl.arange(0, B)
    inside = there[:, None] & (column < size)[None, :]
    at = pointer + tl.cast(first, tl.int64) * size + (row[:, None] * size + column[None, :])
    found = tl.load(at, mask=inside, other=0.0)
    if UPCAST:
        return found.to(tl.float32)
    else:
        return found


@triton.jit
def store_rows(pointer, first, there, values, size: tl.constexpr, B: tl.constexpr):
    """Store what `load_rows` would read."""
    row, column = tl.arange(0, there.shape[0]), tl.arange(0, B)
    inside = there[:, None] & (column < size)[None, :]
    at = pointer + tl.cast(first, tl.int64) * size + (row[:, None] * size + column[None, :])
    tl.store(at, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def product(left, right):
    """A product summed in float32; float32 inputs are multiplied as they are, not as TF32."""
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def product_of_slopes(slopes, right, PLAN: tl.constexpr):
    """A product with slopes, rows of which are scaled down where float16 would not hold them."""
    if PLAN.STEEP and right.dtype == tl.float16:
        shrink = 1.0 / tl.maximum(tl.max(tl.abs(slopes), 1) * 0.0001, 1.0)[:, None]
        return product((slopes * shrink).to(right.dtype), right) / shrink
    else:
        return product(slopes.to(right.dtype), right)


@triton.jit
def held_rows(pointer, first, there, size: tl.constexpr, B: tl.constexpr, PLAN: tl.constexpr):
    """The rows for `product_of_rows`: loaded, or their address if it takes them in chunks."""
    if PLAN.CHUNK == 1:
        return load_rows(pointer, first, there, size, B, PLAN.UPCAST)
    else:
        return pointer + tl.cast(first, tl.int64) * size


@triton.jit
def product_of_rows(left, there, right, first, inside, size, chunk):
    """Inner products of the rows on the left with rows ``first ..`` of a matrix of ``size`` columns.

    Without tensor cores each thread holds whole rows of both sides: they come in chunks. A chunk of
    one column stands for whole rows.
    """
    row = tl.arange(0, inside.shape[0])
    right += tl.cast(first, tl.int64) * size
    if chunk.shape[0] == 1:
        column = tl.arange(0, left.shape[1])
        mask = inside[None, :] & (column < size)[:, None]
        at = right + (row[None, :] * size + column[:, None])
        return product(left, tl.load(at, mask=mask, other=0.0).to(left.dtype))
    else:
        found = tl.zeros((there.shape[0], inside.shape[0]), tl.float32)
        above = tl.arange(0, there.shape[0])
        for begin in range(0, size, chunk.shape[0]):
            column = begin + chunk
            mask = there[:, None] & (column < size)[None, :]
            a = tl.load(left + (above[:, None] * size + column[None, :]), mask=mask, other=0.0)
            mask = inside[None, :] & (column < size)[:, None]
            b = tl.load(right + (row[None, :] * size + column[:, None]), mask=mask, other=0.0)
            found = tl.dot(a, b, found, input_precision="ieee")
        return found


@triton.jit
def _load_own(own, row, there, PLAN: tl.constexpr):
    """The map's parameters for each row: alpha - 1, or the two parts of k."""
    if len(own) == 1:
        return (_parameter(own[0], row, there, PLAN),)
    else:
        return _parameter(own[0], row, there, PLAN), _parameter(own[1], row, there, PLAN)


@triton.jit
def _parameter(a, row, there, PLAN: tl.constexpr):
    if PLAN.PER_ROW:
        return tl.load(a + row, mask=there, other=1.0)
    else:
        return tl.zeros_like(row).to(tl.float32) + a


# --- scores ---------------------------------------------------------------------------------------


@triton.jit
def query_block(inputs, own, head, block, sizes, conditions, PLAN: tl.constexpr):
    """The source of a block of queries; which of them are there, their rows, their parameters."""
    source = _query_source(inputs, head, block, sizes, conditions, PLAN)
    m = block * PLAN.BM + tl.arange(0, PLAN.BM)
    there = m < sizes[0]
    row = head.to(tl.int64) * sizes[0] + m
    return source, there, row, _load_own(own, row, there, PLAN)


@triton.jit
def place(sizes, PLAN: tl.constexpr):
    """This program's block of queries and head, blocks of a head, and rows of all heads.

    The grid has one dimension: others hold at most 65,535 programs.
    """
    across = tl.cdiv(sizes[0], PLAN.BM)
    program = tl.program_id(0)
    total = sizes[0] * (tl.num_programs(0) // across).to(tl.int64)
    return program % across, program // across, across, total


@triton.jit
def first_row(head, block, sizes, PLAN: tl.constexpr):
    """The row of the block's first query."""
    return head.to(tl.int64) * sizes[0] + block * PLAN.BM


@triton.jit
def first_pair(head, block, blocks, sizes):
    """Where the pairs of this block of queries with all blocks of keys begin."""
    return (head.to(tl.int64) * blocks + block) * sizes[3]


@triton.jit
def of_group(pointer, head, sizes, size):
    """The keys or values that this head of queries reads."""
    return pointer + (head // sizes[2]).to(tl.int64) * sizes[1] * size


@triton.jit
def _query_source(inputs, head, block, sizes, conditions, PLAN: tl.constexpr):
    """Queries of one block, and everything that decides their scores.

    The number of keys of a block and of columns of a chunk are there as shapes: only these stay
    constants in a tuple.
    """
    period, count, _, along = sizes
    m = block * PLAN.BM + tl.arange(0, PLAN.BM)
    first = first_row(head, block, sizes, PLAN)
    q = held_rows(inputs[0], first, m < period, PLAN.D, PLAN.WIDTH, PLAN)
    k = of_group(inputs[1], head, sizes, PLAN.D)
    columns = tl.arange(0, PLAN.BN)
    chunk = tl.arange(0, PLAN.CHUNK)
    return q, k, count, along, head, block, m, period, conditions, PLAN.D, columns, chunk


@triton.jit
def listed(source, j):
    """The scores of the j-th block on the list, for `threshold.gpu`."""
    blocks, order = source
    return block_scores(blocks, tl.load(order + j))


@triton.jit
def visited(source, j):
    """The scores of block j, whatever is on the list."""
    return block_scores(source, j)


@triton.jit
def block_scores(source, n):
    """Scores (BM, BN) of block n in float32; what may not be selected is -inf."""
    q, keys, count, _, head, block, m, period, conditions, d, columns, chunk = source
    scale, mask, mask_of, _, mask_height, bias, bias_of, bias_height, offset = conditions
    first = n * columns.shape[0]
    key = first + columns
    there = key < count
    above = m < period
    scores = product_of_rows(q, above, keys, first, there, d, chunk) * scale
    seen = above[:, None] & there[None, :]
    if bias is not None:
        at = _entries(bias, bias_of, bias_height, head, block, m, n, columns, count)
        scores += tl.load(at, mask=seen, other=0.0).to(tl.float32)
    visible = seen
    if offset is not None:
        visible = visible & (key[None, :] <= m[:, None] + offset)
    if mask is not None:
        at = _entries(mask, mask_of, mask_height, head, block, m, n, columns, count)
        visible = visible & (tl.load(at, mask=seen, other=0) != 0)
    return tl.where(visible, scores, -INFINITY)


@triton.jit
def _entries(pointer, which, height, head, block, m, n, columns, count):
    """Where the entries (BM, BN) of this head's mask or bias are; one row may serve all queries."""
    own = tl.where(height > 1, 1, 0)
    first = tl.load(which + head).to(tl.int64) * height + block * own * m.shape[0]
    row = tl.arange(0, m.shape[0]) * own
    at = pointer + first * count + n * columns.shape[0]
    return at + (row[:, None] * count + columns[None, :])


@triton.jit
def last_block(source):
    """The number of key blocks that the causal condition leaves."""
    _, _, _, along, _, block, m, _, conditions, _, columns, _ = source
    _, _, _, _, _, _, _, _, offset = conditions
    if offset is not None:
        reached = tl.cdiv((block + 1) * m.shape[0] + offset, columns.shape[0])
        return tl.minimum(along, tl.maximum(reached, 0))
    else:
        return along


@triton.jit
def is_visible(source, n):
    """Whether the boolean mask leaves anything of this block."""
    _, _, _, along, head, block, m, period, conditions, _, _, _ = source
    _, mask, mask_of, anywhere, mask_height, _, _, _, _ = conditions
    if mask is None:
        return True
    else:
        blocks = tl.where(mask_height > 1, tl.cdiv(period, m.shape[0]), 1)
        at = tl.load(mask_of + head) * blocks + tl.minimum(block, blocks - 1)
        return tl.load(anywhere + at * along + n) != 0


# --- dropout --------------------------------------------------------------------------------------


@triton.jit
def kept(dropout, head, m, n, columns):
    """What dropout multiplies the weights (BM, BN) of block n with: 0 or 1 / (1 - share).

    The random bits are a function of the seed, the head, the query and the key (Philox), so that every
    kernel draws the same ones, whatever its blocks are.
    """
    seed, share, factor = dropout
    key = n * columns.shape[0] + columns
    keys = key[None, :] + tl.zeros_like(m)[:, None]
    rows = m[:, None] + tl.zeros_like(key)[None, :]
    heads = tl.zeros_like(rows) + head
    bits, _, _, _ = tl.philox(seed, keys, rows, heads, tl.zeros_like(rows))
    uniform = (bits >> 8).to(tl.float32) * 5.9604645e-08
    return tl.where(uniform >= share, factor, 0.0)
