"""Attention on the CPU: torch's products of blocks, compiled loops between them.

For a block of queries the scores go into one reused buffer, only for the keys that some row of the
block can see. Where few entries are selected, they are kept as lists, and the second product and the
whole backward pass touch only these. Where many are selected, the block is multiplied densely, and
the backward pass computes it again. Either way memory grows with the number of queries, not with the
number of scores.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.attention import few_queries, short_sequences
from hopfy._kernels.attention.cpu_plan import (
    KINDS,
    Block,
    Selected,
    State,
    Support,
    finite_scores,
    generator_of,
    prepare,
    rows_of,
)
from hopfy._kernels.attention.reference import MAPS
from hopfy._kernels.attention.selected_lists import (
    compacted,
    drop,
    edges_of,
    gather,
    list_gradients,
)
from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.backends import compiled
from hopfy._runtime.threads import over_rows

__all__ = ["State", "backward", "forward"]

# Above this share of selected entries, dense products are faster.
_SPARSE = 0.2
# Up to this many scores in all, the maps' own kernels take whole rows, and the weights are kept.
_SMALL = 1 << 16
# Values with fewer entries than this are multiplied densely even by sparse weights.
_FEW_VALUES = 1 << 17
_NO_MASK = np.zeros((0, 0, 0), np.bool_)
_NO_PLACES = np.zeros(0, np.int64)


def forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Visible,
    family: Family,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Tensor, State | short_sequences.State | few_queries.State] | None:
    """See `hopfy._kernels.attention`; None where scores could overflow or loops cannot run."""
    kernels: Any = compiled("attention.cpu")
    if kernels is None:
        return None
    small = queries.shape[0] * queries.shape[1] * keys.shape[1] <= _SMALL
    quick = None
    if not dropout:
        quick = _quick_forward(kernels, (queries, keys, values), visible, family, scale, small)
    if quick is not None:
        return quick
    if not (small or finite_scores(queries, keys, scale)):
        return None
    state = prepare(kernels, queries, keys, visible, family, scale, dropout, seed)
    output = queries.new_empty(queries.shape[0], queries.shape[1], values.shape[2])
    run = _small_forward if small else _blocks_forward
    run(kernels, queries, keys, values, state, output)
    return output, state


def _quick_forward(
    kernels: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    visible: Visible,
    family: Family,
    scale: float,
    small: bool,
) -> tuple[Tensor, short_sequences.State | few_queries.State] | None:
    """The ways for short sequences and for few queries; None where neither serves."""
    rows, keys = inputs[0].shape[1], inputs[1].shape[1]
    alpha = rows_of(family.parameter)
    arguments = kernels, inputs, visible, family, scale, alpha
    short = small and rows > 1 and not visible.restricts
    if short and short_sequences.serves(inputs[0].dtype, keys, family.kind, alpha):
        found = short_sequences.forward(*arguments)
        if found is not None:
            return found
    return few_queries.forward(*arguments) if rows <= few_queries.MOST else None


def _blocks_forward(
    kernels: Any, queries: Tensor, keys: Tensor, values: Tensor, state: State, output: Tensor
) -> None:
    """One block of scores after the other; what a block selects is kept if it is little."""
    work = _Buffers(queries, state)
    dropout = state.dropout
    dense = False  # as the block before: neighbors are alike
    found: Selected | None
    room = 2 * (queries.shape[2] + values.shape[2])  # entries per row worth keeping
    for number, block in enumerate(state.blocks):
        found = None if dense else _selected(kernels, queries, keys, state, block, work)
        weights = None
        if found is None:
            weights = _dense_weights(kernels, queries, keys, state, block)
            chosen = int(weights.count_nonzero())
        else:
            chosen = int(found[1].sum())
        dense = chosen > _SPARSE * block.rows * (block.b - block.a)
        generator = generator_of(state, number)
        if dense:
            if weights is None and found is not None:
                weights = _spread(kernels, found, block)
            assert weights is not None
            _dense_output(weights, values, output, block, generator, dropout)
            state.supports.append(None)
        else:
            if weights is not None:
                found = _picked(kernels, weights, block)
            assert found is not None
            part = compacted(kernels, found, generator, dropout)
            gather(kernels, part, values, output, state.first(block))
            keep = chosen <= room * block.rows or bool(dropout)
            state.supports.append(part if keep else None)


def _small_forward(
    kernels: Any, queries: Tensor, keys: Tensor, values: Tensor, state: State, output: Tensor
) -> None:
    for number, block in enumerate(state.blocks):
        weights = _dense_weights(kernels, queries, keys, state, block)
        state.supports.append(weights)
        worth_it = values.numel() >= _FEW_VALUES and not state.dropout
        if worth_it and int(weights.count_nonzero()) * 8 < weights.numel():
            found = _picked(kernels, weights.clone(), block)
            part = compacted(kernels, found)
            gather(kernels, part, values, output, state.first(block))
            state.supports[-1] = part
        else:
            generator = generator_of(state, number)
            _dense_output(weights, values, output, block, generator, state.dropout)


def backward(
    state: State,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cotangent: Tensor,
    wanted: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, values and, if wanted, of the parameter of each row (G, R)."""
    kernels = state.kernels
    inputs = queries, keys, values
    if len(state.blocks) == 1 and isinstance(state.supports[0], Tensor):
        block = state.blocks[0]
        if block.a == 0 and block.b == keys.shape[1] and not (state.dropout or wanted):
            return _whole_backward(state.supports[0], inputs, cotangent, state)
    gradients, in_parameter = list_gradients(state, _joined(state), inputs, cotangent, wanted)
    for number, block in enumerate(state.blocks):
        weights = state.supports[number]
        if not isinstance(weights, tuple):
            if weights is None:
                weights = _dense_weights(kernels, queries, keys, state, block)
            _dense_backward(weights, inputs, cotangent, gradients, in_parameter, state, number)
    return *gradients, in_parameter if wanted else None


def kept_weights(state: State, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """What dropout multiplied each weight (G, R, N) with."""
    factors = torch.zeros(shape, dtype=dtype)
    for number, block in enumerate(state.blocks):
        part = state.supports[number]
        place = factors[block.g : block.h, block.r : block.s, block.a : block.b]
        if not isinstance(part, Support):
            place.copy_(drop(place, generator_of(state, number), state.dropout))
            continue
        row = torch.arange(block.rows).repeat_interleave(part.edges.diff())
        flat = torch.zeros(block.rows, block.b - block.a, dtype=dtype)
        flat[row, part.columns.long() - block.a] = part.kept
        place.copy_(flat.view(place.shape))
    return factors


# --- buffers ------------------------------------------------------------------------------------


class _Buffers:
    """Scratch for the scores of one block and the columns of what it selects."""

    def __init__(self, queries: Tensor, state: State) -> None:
        largest = max(block.rows * (block.b - block.a) for block in state.blocks)
        self.scores = queries.new_empty(largest)
        self.columns = torch.empty(largest, dtype=torch.int32)

    def of(self, block: Block) -> tuple[Tensor, Tensor]:
        size = (block.rows, block.b - block.a)
        count = size[0] * size[1]
        return self.scores[:count].view(size), self.columns[:count].view(size)


# --- one block, forward ---------------------------------------------------------------------------


def _scores(
    kernels: Any, queries: Tensor, keys: Tensor, state: State, block: Block, out: Tensor
) -> None:
    """Scores of a block (rows, keys), with bias and mask inside each row's range of keys."""
    view = out.view(block.h - block.g, block.s - block.r, out.shape[1])
    q, k = queries[block.g : block.h, block.r : block.s], keys[block.g : block.h, block.a : block.b]
    if view.shape[1] == 1 and q.is_contiguous():
        scale = out.numpy().dtype.type(state.scale)
        place = 0, out.shape[1], scale, out.numpy()
        work = k.numel() // 4
        over_rows(kernels.products, out.shape[0], work, q[:, 0].numpy(), k.numpy(), *place)
    else:
        torch.baddbmm(view, q, k.mT, beta=0, alpha=state.scale, out=view)
    if state.ragged:
        visible = state.visible
        mask = _NO_MASK if visible.mask is None else visible.mask.numpy()
        mask_of = _NO_PLACES if visible.mask_of is None else visible.mask_of.numpy()
        bias = out.new_empty(0, 0, 0) if visible.bias is None else visible.bias
        bias_of = _NO_PLACES if visible.bias_of is None else visible.bias_of.numpy()
        here = out.numpy(), state.first(block), block.a, state.low, state.high, visible.period
        over_rows(
            kernels.blank, block.rows, out.numel(), *here, mask, mask_of, bias.numpy(), bias_of
        )


def _scores_of_visible(
    kernels: Any, queries: Tensor, keys: Tensor, state: State, block: Block, out: Tensor
) -> None:
    """Scores of a block, -inf for all keys that a row may not see."""
    _scores(kernels, queries, keys, state, block, out)
    if state.restricted:
        place = state.first(block), block.a, state.low, state.high
        over_rows(kernels.outside, block.rows, block.rows * 64, out.numpy(), *place)


def _selected(
    kernels: Any, queries: Tensor, keys: Tensor, state: State, block: Block, work: _Buffers
) -> Selected | None:
    """Weights and columns at the front of each row, and how many; None if not this map's way."""
    if not state.selects:
        return None
    scores, columns = work.of(block)
    counts = torch.zeros(block.rows, dtype=torch.int64)
    if not scores.numel():
        return scores, counts, columns
    _scores(kernels, queries, keys, state, block, scores)
    place = state.first(block), block.a, state.low, state.high
    kind = KINDS[state.family.kind]
    arrays = columns.numpy(), counts.numpy(), state.alpha, kind, state.steep
    over_rows(kernels.select, block.rows, scores.numel(), scores.numpy(), *place, *arrays)
    return scores, counts, columns


def _dense_weights(
    kernels: Any, queries: Tensor, keys: Tensor, state: State, block: Block
) -> Tensor:
    """All weights of a block (rows, keys)."""
    scores = queries.new_empty(block.rows, block.b - block.a)
    if not scores.numel():
        return scores
    first = state.first(block)
    if short_sequences.serves(scores.dtype, scores.shape[1], state.family.kind, state.alpha):
        _scores_of_visible(kernels, queries, keys, state, block, scores)
        alpha = state.alpha if state.alpha.size == 1 else state.alpha[first : first + block.rows]
        if short_sequences.solve(kernels, scores, alpha, state.family.kind):
            return scores
    _scores_of_visible(kernels, queries, keys, state, block, scores)
    parameter = state.family.parameter
    if parameter.ndim:
        parameter = parameter.reshape(-1, 1)[first : first + block.rows]
    if state.family.kind == "ksubsets":  # fewer visible keys than k: all of them
        parameter = torch.minimum(parameter, (scores > -torch.inf).sum(-1, keepdim=True))
    return cast(Tensor, MAPS[state.family.kind].solve(scores, parameter))


def _spread(kernels: Any, found: Selected, block: Block) -> Tensor:
    weights, counts, columns = found
    dense = torch.empty_like(weights)
    arrays = weights.numpy(), columns.numpy(), counts.numpy(), block.a, dense.numpy()
    over_rows(kernels.spread, block.rows, weights.numel(), *arrays)
    return dense


def _picked(kernels: Any, weights: Tensor, block: Block) -> Selected:
    counts = torch.zeros(block.rows, dtype=torch.int64)
    columns = torch.empty(weights.shape, dtype=torch.int32)
    arrays = weights.numpy(), block.a, weights.numpy(), columns.numpy(), counts.numpy()
    over_rows(kernels.pick, block.rows, weights.numel(), *arrays)
    return weights, counts, columns


def _dense_output(
    weights: Tensor,
    values: Tensor,
    output: Tensor,
    block: Block,
    generator: torch.Generator | None,
    dropout: float,
) -> None:
    if dropout:
        weights = weights * drop(weights, generator, dropout)
    view = weights.view(block.h - block.g, block.s - block.r, weights.shape[1])
    v = values[block.g : block.h, block.a : block.b]
    if block.rows == output.shape[0] * output.shape[1]:
        torch.bmm(view, v, out=output)
    else:
        output[block.g : block.h, block.r : block.s] = torch.bmm(view, v)


# --- backward -------------------------------------------------------------------------------------


def _joined(state: State) -> Support | None:
    """The supports of all blocks as one; a block that is computed again has none."""
    kept = [part for part in state.supports if isinstance(part, Support)]
    if not kept:
        return None
    counts = [
        part.edges.diff()
        if isinstance(part, Support)
        else torch.zeros(block.rows, dtype=torch.int64)
        for block, part in zip(state.blocks, state.supports, strict=True)
    ]
    weights, columns, factors = (
        torch.cat([getattr(part, name) for part in kept]) for name in ("weights", "columns", "kept")
    )
    return Support(weights, columns, edges_of(torch.cat(counts)), factors)


@torch.no_grad()
def _whole_backward(
    weights: Tensor, inputs: tuple[Tensor, Tensor, Tensor], cotangent: Tensor, state: State
) -> tuple[Tensor, Tensor, Tensor, None]:
    """Gradients where one block holds everything, all weights kept."""
    q, k, v = inputs
    view = weights.view(q.shape[0], q.shape[1], -1)
    along = torch.bmm(cotangent, v.mT).view_as(weights)
    if short_sequences.serves(weights.dtype, weights.shape[1], state.family.kind, state.alpha):
        kind = state.family.kind
        short_sequences.through(state.kernels, weights, along, state.alpha, kind, state.scale)
        through = along.view_as(view)
    else:
        parameter = state.family.parameter
        if parameter.ndim:
            parameter = parameter.reshape(-1, 1)
        through = MAPS[state.family.kind].vjp(weights, parameter, along).view_as(view)
        through = through.mul_(state.scale)
    return torch.bmm(through, k), torch.bmm(through.mT, q), torch.bmm(view.mT, cotangent), None


def _dense_backward(
    weights: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    cotangent: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
    in_parameter: Tensor,
    state: State,
    number: int,
) -> None:
    """Add the part of one block to the gradients."""
    if not weights.numel():
        return
    block = state.blocks[number]
    groups, rows, keys = (
        slice(block.g, block.h),
        slice(block.r, block.s),
        slice(block.a, block.b),
    )
    q, k, v = inputs[0][groups, rows], inputs[1][groups, keys], inputs[2][groups, keys]
    outside = cotangent[groups, rows]
    view = weights.view(block.h - block.g, block.s - block.r, weights.shape[1])
    along = torch.bmm(outside, v.mT)
    used = view
    if state.dropout:
        factors = drop(weights, generator_of(state, number), state.dropout).view_as(view)
        used, along = view * factors, along * factors
    gradients[2][groups, keys] += torch.bmm(used.mT, outside)
    first = state.first(block)
    parameter = state.family.parameter
    if parameter.ndim:
        parameter = parameter.reshape(-1, 1)[first : first + block.rows]
    kind = MAPS[state.family.kind]
    with torch.no_grad():
        flat = along.view_as(weights)
        through = kind.vjp(weights, parameter, flat)
        if in_parameter.numel():
            slopes = kind.slope(weights, parameter) * torch.where(weights > 0, flat, 0.0)
            in_parameter.view(-1)[first : first + block.rows] = slopes.sum(-1).double()
    through = through.view_as(view).mul_(state.scale)
    gradients[0][groups, rows] += torch.bmm(through, k)
    gradients[1][groups, keys] += torch.bmm(through.mT, q)
