# mypy: ignore-errors
r"""Attention in Triton by blocks of queries and keys: no (M, N) array of weights ever exists.

Four kernels, each over blocks (BM queries, BN keys) whose scores are computed anew:

1. `threshold_kernel`: the maximum of each row and the list of key blocks that come within the map's
   margin of it, then the map's threshold from these blocks only;
2. `output_kernel`: weights and their product with the values; it notes which blocks have any weight;
3. `queries_kernel`: per row the sums that the Jacobian needs, the gradients of queries and alpha;
4. `keys_kernel`: the gradients of keys and values, one program for each block of keys.

Every element of every result is written by one program, in a fixed order of additions: results are
the same in every run. The interface is that of `hopfy._kernels.attention`.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.attention.gpu_blocks import block_scores, listed, row_numbers
from hopfy._kernels.attention.gpu_maps import (
    parameter_slopes,
    row_sums,
    solve_rows,
    through,
    weights_of,
)
from hopfy._kernels.attention.types import Family, Visible
from hopfy._kernels.entmax import gpu as entmax
from hopfy._kernels.normmax import gpu as normmax
from hopfy._kernels.row_launch import parameter_of
from hopfy._kernels.threshold.gpu import INFINITY

__all__ = ["State", "backward", "blocks_for", "forward"]

_LARGEST_HEAD = 256
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAPS = {"entmax": (0, entmax), "normmax": (1, normmax)}


class Blocks(NamedTuple):
    """Queries and keys of a block, padded sizes of keys and values, warps."""

    BM: int
    BN: int
    BD: int
    BE: int
    warps: int


def blocks_for(key_size: int, value_size: int, dtype: torch.dtype) -> Blocks:
    """The blocks for these sizes: a fixed choice, so that no result depends on a timing."""
    d, e = (max(16, triton.next_power_of_2(size)) for size in (key_size, value_size))
    wide = max(d, e)
    if dtype == torch.float32:  # no tensor cores: operands stay in registers
        m, n = (16, 32) if wide <= 64 else (16, 16)
    else:
        m, n = (64, 64) if wide <= 64 else (32, 32) if wide <= 128 else (16, 32)
    return Blocks(m, n, d, e, 8)


class State(NamedTuple):
    """What the backward pass needs beside the inputs."""

    backend = "triton"
    visible: Visible
    family: Family
    scale: float
    dropout: float
    settings: dict[str, Any]
    pointers: tuple[Any, ...]
    rows: Tensor  # (4, G R): top, edge, root and sum of each row
    lists: tuple[Tensor, Tensor]  # key blocks of each query block, and how many
    used: Tensor  # (heads, query blocks, key blocks): whether any weight is there
    shape: tuple[int, ...]


def forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Visible,
    family: Family,
    scale: float = 1.0,
    dropout: float = 0.0,
) -> tuple[Tensor, State] | None:
    """See `hopfy._kernels.attention`; None for float64, dropout, k-subsets and heads above 256."""
    (groups, rows, d), (count, e) = queries.shape, values.shape[1:]
    if family.kind not in _MAPS or dropout or max(d, e) > _LARGEST_HEAD:
        return None
    if queries.dtype not in _DTYPES or not queries.numel() or not values.numel():
        return None
    blocks = blocks_for(d, e, queries.dtype)
    period = visible.period
    heads, across = groups * rows // period, triton.cdiv(period, blocks.BM)
    along = triton.cdiv(count, blocks.BN)
    pointers, settings = _arguments(queries, e, visible, family, scale, blocks)
    state = State(
        visible,
        family,
        scale,
        dropout,
        settings,
        pointers,
        queries.new_empty(4, groups * rows, dtype=torch.float32),
        (
            torch.empty(heads, across, along, dtype=torch.int32, device=queries.device),
            torch.empty(heads, across, dtype=torch.int32, device=queries.device),
        ),
        torch.zeros(heads, across, along, dtype=torch.int8, device=queries.device),
        (period, count, rows // period, along),
    )
    output = queries.new_empty(groups, rows, e)
    grid = (across, heads)
    with torch.cuda.device_of(queries):
        threshold_kernel[grid](
            queries, keys, *pointers, state.rows, *state.lists, *state.shape, **settings
        )
        output_kernel[grid](
            queries,
            keys,
            values,
            output,
            *pointers,
            state.rows,
            *state.lists,
            state.used,
            *state.shape,
            **settings,
        )
    return output, state


def backward(
    state: State,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cotangent: Tensor,
    wanted: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, values and, if wanted, of the parameter of each row (G, R)."""
    cotangent = cotangent.contiguous()
    in_queries, in_keys, in_values = (torch.empty_like(x) for x in (queries, keys, values))
    sums = torch.empty(2, state.rows.shape[1], dtype=torch.float32, device=queries.device)
    in_parameter = sums.new_empty(queries.shape[:2] if wanted else 1)
    heads, across, along = state.used.shape
    shared = (*state.pointers, state.rows, sums)
    tensors = queries, keys, values, cotangent
    with torch.cuda.device_of(queries):
        queries_kernel[(across, heads)](
            *tensors,
            in_queries,
            in_parameter,
            *shared,
            *state.lists,
            state.used,
            *state.shape,
            WANTED=wanted,
            **state.settings,
        )
        keys_kernel[(along, queries.shape[0])](
            *tensors, in_keys, in_values, *shared, state.used, *state.shape, **state.settings
        )
    return in_queries, in_keys, in_values, in_parameter if wanted else None


def _arguments(
    queries: Tensor, value_size: int, visible: Visible, family: Family, scale: float, blocks: Blocks
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What all kernels share: the map's parameter, mask and bias; and the constants."""
    kind, module = _MAPS[family.kind]
    parameter = family.parameter
    a, stride, per_row = parameter_of(
        parameter[..., None] if parameter.ndim else parameter, queries, lambda alpha: alpha - 1
    )
    regime = "per row" if per_row else module.regime_of(a)
    mask, anywhere = visible.mask, None
    if mask is not None:
        mask = mask.contiguous()
        anywhere = _by_block(mask, blocks.BM, blocks.BN)
        mask = mask.view(torch.int8)
    bias = None if visible.bias is None else visible.bias.contiguous()
    mask_of, bias_of = (
        None if which is None else which.to(queries.device)
        for which in (visible.mask_of, visible.bias_of)
    )
    pointers = (a, stride, scale, mask, mask_of, anywhere, _height(mask))
    pointers += (bias, bias_of, _height(bias), visible.causal)
    settings = {
        "KIND": kind,
        "REGIME": module.REGIMES[regime],
        "PER_ROW": per_row,
        # The interpreter multiplies bfloat16 wrongly.
        "UPCAST": os.environ.get("TRITON_INTERPRET") == "1" and queries.dtype == torch.bfloat16,
        "D": queries.shape[2],
        "E": value_size,
        "BM": blocks.BM,
        "BN": blocks.BN,
        "BD": blocks.BD,
        "BE": blocks.BE,
        "num_warps": blocks.warps,
        "num_stages": 1,
    }
    return pointers, settings


def _height(part: Tensor | None) -> int:
    """Rows of each mask: one for all queries, or one for each."""
    return 1 if part is None else part.shape[1]


def _by_block(mask: Tensor, m: int, n: int) -> Tensor:
    """Whether a block of the mask (K, M or 1, N) has any True: (K, blocks of M or 1, blocks of N)."""
    across = m if mask.shape[1] > 1 else 1
    short, missing = -mask.shape[1] % across, -mask.shape[2] % n
    padded = torch.nn.functional.pad(mask, (0, missing, 0, short))
    tiles = padded.unflatten(2, (-1, n)).unflatten(1, (-1, across))
    return tiles.any(-1).any(2).to(torch.int8).contiguous()


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def threshold_kernel(
    queries,
    keys,
    a,
    stride,
    scale,
    mask,
    mask_of,
    anywhere,
    mask_height,
    bias,
    bias_of,
    bias_height,
    offset,
    rows,
    order,
    counts,
    period,
    count,
    repeat,
    along,
    KIND: tl.constexpr,
    REGIME: tl.constexpr,
    PER_ROW: tl.constexpr,
    UPCAST: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BE: tl.constexpr,
):
    place = row_numbers(period, BM)
    block, head, m, row, there = place
    q = _load(queries, row, there, D, BD, UPCAST)
    k = keys + (head // repeat).to(tl.int64) * count * D
    conditions = (mask, mask_of, anywhere, mask_height, bias, bias_of, bias_height, offset)
    source = (q, k, count, along, scale, head, block, m, period, conditions, D, tl.arange(0, BN))
    order += (head.to(tl.int64) * tl.num_programs(0) + block) * along
    alpha = _parameter(a, stride, row, there, PER_ROW)
    top, spoiled, tiles = _first_pass(source, order, alpha, there, KIND, BM, BN)
    ready = there & (top > -INFINITY) & ~spoiled
    edge, root = solve_rows(
        listed, (source, order), tiles, ready, tl.where(ready, top, 0.0), alpha, KIND, REGIME
    )
    tl.store(counts + head * tl.num_programs(0) + block, tiles)
    total = period * tl.num_programs(1)
    tl.store(rows + row, tl.where(spoiled, float("nan"), top), mask=there)
    tl.store(rows + total + row, edge, mask=there)
    tl.store(rows + 2 * total + row, root, mask=there)


@triton.jit
def _first_pass(
    source,
    order,
    alpha,
    there,
    KIND: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Maxima, spoiled rows, and the list of key blocks within the margin of the maximum so far.

    What is a margin below a maximum has no weight, whatever follows.
    """
    _, _, _, along, _, _, block, _, _, conditions, _, _ = source
    _, _, _, _, _, _, _, offset = conditions
    end = along
    if offset is not None:
        end = tl.minimum(along, tl.maximum(tl.cdiv((block + 1) * BM + offset, BN), 0))
    margin = tl.zeros_like(alpha) + 1.0 if KIND == 1 else 1.0 / alpha
    top = tl.full((BM,), -INFINITY, tl.float32)
    spoiled = tl.zeros((BM,), tl.int32)
    tiles = 0
    for n in range(end):
        if _is_visible(source, n):
            scores = block_scores(source, n)
            bad = (scores != scores) | (scores == INFINITY)
            spoiled = tl.maximum(spoiled, tl.max(bad.to(tl.int32), 1))
            best = tl.max(tl.where(bad, -INFINITY, scores), 1)
            top = tl.maximum(top, best)
            near = there & (best > -INFINITY) & (best >= top - margin)
            if tl.max(near.to(tl.int32), 0) > 0:
                tl.store(order + tiles, n)
                tiles += 1
    tl.debug_barrier()  # other threads of this program read the list
    return top, spoiled > 0, tiles


@triton.jit
def _is_visible(source, n):
    """Whether the boolean mask leaves anything of this block."""
    _, _, _, along, _, head, block, _, _, conditions, _, _ = source
    mask, mask_of, anywhere, mask_height, _, _, _, _ = conditions
    if mask is None:
        return True
    else:
        blocks = tl.where(mask_height > 1, tl.num_programs(0), 1)
        at = tl.load(mask_of + head) * blocks + tl.minimum(block, blocks - 1)
        return tl.load(anywhere + at * along + n) != 0


@triton.jit
def output_kernel(
    queries,
    keys,
    values,
    output,
    a,
    stride,
    scale,
    mask,
    mask_of,
    anywhere,
    mask_height,
    bias,
    bias_of,
    bias_height,
    offset,
    rows,
    order,
    counts,
    used,
    period,
    count,
    repeat,
    along,
    KIND: tl.constexpr,
    REGIME: tl.constexpr,
    PER_ROW: tl.constexpr,
    UPCAST: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BE: tl.constexpr,
):
    place = row_numbers(period, BM)
    block, head, m, row, there = place
    q = _load(queries, row, there, D, BD, UPCAST)
    group = (head // repeat).to(tl.int64)
    k = keys + group * count * D
    conditions = (mask, mask_of, anywhere, mask_height, bias, bias_of, bias_height, offset)
    source = (q, k, count, along, scale, head, block, m, period, conditions, D, tl.arange(0, BN))
    first = (head.to(tl.int64) * tl.num_programs(0) + block) * along
    alpha = _parameter(a, stride, row, there, PER_ROW)
    found = period * tl.num_programs(1)
    top = tl.load(rows + row, mask=there, other=-INFINITY)
    edge = tl.load(rows + found + row, mask=there, other=0.0)
    root = tl.load(rows + 2 * found + row, mask=there, other=1.0)
    ready = top > -INFINITY
    total = tl.zeros((BM,), tl.float32)
    result = tl.zeros((BM, BE), tl.float32)
    for i in range(tl.load(counts + head * tl.num_programs(0) + block)):
        n = tl.load(order + first + i)
        p = weights_of(block_scores(source, n), top, edge, root, alpha, KIND, REGIME)
        p = tl.where(ready[:, None], p, 0.0)
        if tl.max(tl.max(p, 1), 0) > 0.0:
            key = n * BN + tl.arange(0, BN)
            v = _load(values + group * count * E, key.to(tl.int64), key < count, E, BE, UPCAST)
            result += _product(p.to(v.dtype), v)
            total += tl.sum(p, 1)
            tl.store(used + first + n, 1)
    result = result / tl.where(total > 0.0, total, 1.0)[:, None]
    result = tl.where((top != top)[:, None], float("nan"), result)
    _store(output, row, there, E, result, BE)
    tl.store(rows + 3 * found + row, tl.where(total > 0.0, total, 1.0), mask=there)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def queries_kernel(
    queries,
    keys,
    values,
    cotangent,
    in_queries,
    in_parameter,
    a,
    stride,
    scale,
    mask,
    mask_of,
    anywhere,
    mask_height,
    bias,
    bias_of,
    bias_height,
    offset,
    rows,
    sums,
    order,
    counts,
    used,
    period,
    count,
    repeat,
    along,
    WANTED: tl.constexpr,
    KIND: tl.constexpr,
    REGIME: tl.constexpr,
    PER_ROW: tl.constexpr,
    UPCAST: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BE: tl.constexpr,
):
    place = row_numbers(period, BM)
    block, head, m, row, there = place
    q = _load(queries, row, there, D, BD, UPCAST)
    outside = _load(cotangent, row, there, E, BE, UPCAST)
    group = (head // repeat).to(tl.int64)
    k = keys + group * count * D
    v = values + group * count * E
    conditions = (mask, mask_of, anywhere, mask_height, bias, bias_of, bias_height, offset)
    source = (q, k, count, along, scale, head, block, m, period, conditions, D, tl.arange(0, BN))
    first = (head.to(tl.int64) * tl.num_programs(0) + block) * along
    alpha = _parameter(a, stride, row, there, PER_ROW)
    found = period * tl.num_programs(1)
    state = _row_state(rows, row, there, found)
    tiles = tl.load(counts + head * tl.num_programs(0) + block)
    zero = tl.zeros((BM,), tl.float32)
    partial = (zero, zero, zero, zero)
    for i in range(tiles):
        n = tl.load(order + first + i)
        if tl.load(used + first + n) != 0:
            p, along_p = _weights_and_slopes(
                source, n, state, alpha, outside, v, UPCAST, KIND, REGIME, E, BN, BE
            )
            partial = row_sums(partial, p, along_p, state, alpha, KIND, WANTED)
    center, total, extra = _finish(partial, KIND)
    result = tl.zeros((BM, BD), tl.float32)
    slope = tl.zeros((BM,), tl.float32)
    for i in range(tiles):
        n = tl.load(order + first + i)
        if tl.load(used + first + n) != 0:
            p, along_p = _weights_and_slopes(
                source, n, state, alpha, outside, v, UPCAST, KIND, REGIME, E, BN, BE
            )
            ds = through(p, along_p, center, total, state, alpha, KIND)
            key = n * BN + tl.arange(0, BN)
            here = _load(k, key.to(tl.int64), key < count, D, BD, UPCAST)
            result += _product(ds.to(here.dtype), here)
            if WANTED:
                slope -= tl.sum(parameter_slopes(p, state, extra, alpha, KIND) * ds, 1)
    spoiled = state[0] != state[0]
    result = tl.where(spoiled[:, None], float("nan"), result * scale)
    _store(in_queries, row, there, D, result, BD)
    tl.store(sums + row, center, mask=there)
    tl.store(sums + found + row, total, mask=there)
    if WANTED:
        tl.store(in_parameter + row, tl.where(spoiled, float("nan"), slope), mask=there)


@triton.jit
def _finish(partial, KIND: tl.constexpr):
    """What `through` needs from the sums: two numbers per row, and one for the parameter."""
    first, second, third, fourth = partial
    if KIND == 0:  # sums of g and of g (v - origin), the steepest g, the origin
        return fourth, second / tl.where(first > 0.0, first, 1.0), third
    else:  # sums of y v, kappa, kappa v, and for the parameter
        return first, third - first * second, fourth


@triton.jit
def keys_kernel(
    queries,
    keys,
    values,
    cotangent,
    in_keys,
    in_values,
    a,
    stride,
    scale,
    mask,
    mask_of,
    anywhere,
    mask_height,
    bias,
    bias_of,
    bias_height,
    offset,
    rows,
    sums,
    used,
    period,
    count,
    repeat,
    along,
    KIND: tl.constexpr,
    REGIME: tl.constexpr,
    PER_ROW: tl.constexpr,
    UPCAST: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BE: tl.constexpr,
):
    n = tl.program_id(0)
    group = tl.program_id(1).to(tl.int64)
    k = keys + group * count * D
    v = values + group * count * E
    found = period * tl.num_programs(1) * repeat
    blocks = tl.cdiv(period, BM)
    conditions = (mask, mask_of, anywhere, mask_height, bias, bias_of, bias_height, offset)
    in_key = tl.zeros((BN, BD), tl.float32)
    in_value = tl.zeros((BN, BE), tl.float32)
    for i in range(repeat * blocks):
        head = tl.program_id(1) * repeat + i // blocks
        block = i % blocks
        if tl.load(used + (head.to(tl.int64) * blocks + block) * along + n) != 0:
            m = block * BM + tl.arange(0, BM)
            there = m < period
            row = head.to(tl.int64) * period + m
            q = _load(queries, row, there, D, BD, UPCAST)
            outside = _load(cotangent, row, there, E, BE, UPCAST)
            keys_here = tl.arange(0, BN)
            source = (q, k, count, along, scale, head, block, m, period, conditions, D, keys_here)
            alpha = _parameter(a, stride, row, there, PER_ROW)
            state = _row_state(rows, row, there, found)
            center = tl.load(sums + row, mask=there, other=0.0)
            total = tl.load(sums + found + row, mask=there, other=0.0)
            p, along_p = _weights_and_slopes(
                source, n, state, alpha, outside, v, UPCAST, KIND, REGIME, E, BN, BE
            )
            ds = through(p, along_p, center, total, state, alpha, KIND)
            in_value += _product(tl.trans(p).to(outside.dtype), outside)
            in_key += _product(tl.trans(ds).to(q.dtype), q)
    key = n * BN + tl.arange(0, BN)
    at = group * count + key
    _store(in_keys, at, key < count, D, in_key * scale, BD)
    _store(in_values, at, key < count, E, in_value, BE)


@triton.jit
def _row_state(rows, row, there, found):
    top = tl.load(rows + row, mask=there, other=-INFINITY)
    edge = tl.load(rows + found + row, mask=there, other=0.0)
    root = tl.load(rows + 2 * found + row, mask=there, other=1.0)
    total = tl.load(rows + 3 * found + row, mask=there, other=1.0)
    return top, edge, root, total


@triton.jit
def _weights_and_slopes(
    source,
    n,
    state,
    alpha,
    outside,
    values,
    UPCAST: tl.constexpr,
    KIND: tl.constexpr,
    REGIME: tl.constexpr,
    E: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
):
    """Weights of a block, and the cotangent of each: cotangent of the row times the value."""
    top, edge, root, total = state
    count = source[2]
    p = weights_of(block_scores(source, n), top, edge, root, alpha, KIND, REGIME)
    p = tl.where((top > -INFINITY)[:, None], p / total[:, None], 0.0)
    key = n * BN + tl.arange(0, BN)
    v = _load(values, key.to(tl.int64), key < count, E, BE, UPCAST)
    return p, _product(outside, tl.trans(v))


# --- loads, stores, products ----------------------------------------------------------------------


@triton.jit
def _load(pointer, row, there, size: tl.constexpr, B: tl.constexpr, UPCAST: tl.constexpr):
    """Rows (len(row), B) of a matrix with ``size`` columns, zeros outside."""
    column = tl.arange(0, B)
    inside = there[:, None] & (column < size)[None, :]
    found = tl.load(pointer + row[:, None] * size + column[None, :], mask=inside, other=0.0)
    if UPCAST:
        return found.to(tl.float32)
    else:
        return found


@triton.jit
def _store(pointer, row, there, size: tl.constexpr, values, B: tl.constexpr):
    column = tl.arange(0, B)
    inside = there[:, None] & (column < size)[None, :]
    at = pointer + row[:, None] * size + column[None, :]
    tl.store(at, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _parameter(a, stride, row, there, PER_ROW: tl.constexpr):
    if PER_ROW:
        return tl.load(a + row * stride, mask=there, other=1.0)
    else:
        return tl.zeros_like(row).to(tl.float32) + a


@triton.jit
def _product(left, right):
    """A product summed in float32; float32 inputs are multiplied as they are, not as TF32."""
    return tl.dot(left, right, input_precision="ieee")
