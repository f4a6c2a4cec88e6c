"""One query, or a few, over many keys: a single compiled loop reads the keys once for each.

What a row selects stands at the front of its buffers; lists are made of them only for a backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.attention.cpu_plan import KINDS, is_steep, ranges, selects
from hopfy._kernels.attention.selected_lists import compacted, list_gradients
from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.backends import compiled
from hopfy._runtime.threads import over_rows

__all__ = ["MOST", "State", "attend", "backward", "forward"]

# Queries of a group that read its keys one after the other.
MOST = 4
# Products that take as long as one entry touched elsewhere.
_PRODUCTS = 32

Array = np.ndarray[Any, Any]


class State(NamedTuple):
    """What the backward pass needs beside the inputs."""

    kernels: Any
    visible: Visible
    family: Family
    scale: float
    alpha: Array
    selected: tuple[Array, Array, Array]  # weights (rows, keys), how many count, their keys
    dropout: float = 0.0

    @property
    def backend(self) -> str:
        return "few"

    @property
    def steep(self) -> bool | None:
        return is_steep(self.family.kind, self.alpha)


def attend(
    query: Tensor, key: Tensor, value: Tensor, kind: str, parameter: float, scale: float
) -> Tensor | None:
    """See `hopfy._kernels.attention.attend_one`: a call costs as much as 100,000 products."""
    kernels: Any = compiled("attention.cpu")
    alpha = np.array([parameter])
    if kernels is None or not (query.numel() and value.numel() and selects(kind, alpha)):
        return None
    arrays = tuple(
        x.detach().contiguous().numpy().reshape(-1, *x.shape[-2:]) for x in (query, key, value)
    )
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    rows, keys = arrays[0].shape[0] * arrays[0].shape[1], arrays[1].shape[1]
    seen = np.zeros(rows, np.int64), np.full(rows, keys)
    out = output.numpy().reshape(*arrays[0].shape[:2], -1)
    found = _selected(kernels, arrays, out, seen, scale, kind, alpha)
    return None if found is None else output


def forward(
    kernels: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    visible: Visible,
    family: Family,
    scale: float,
    alpha: Array,
) -> tuple[Tensor, State] | None:
    """See `hopfy._kernels.attention`; None where masks have holes or a score is not finite."""
    queries, keys, values = inputs
    if not (queries.numel() and selects(family.kind, alpha)):
        return None
    rows = queries.shape[0] * queries.shape[1]
    low, high, ragged = ranges(kernels, visible, rows, keys.shape[1])
    if ragged:
        return None
    output = queries.new_empty(queries.shape[0], queries.shape[1], values.shape[2])
    arrays = queries.numpy(), keys.numpy(), values.numpy()
    found = _selected(kernels, arrays, output.numpy(), (low, high), scale, family.kind, alpha)
    if found is None:
        return None
    return output, State(kernels, visible, family, scale, alpha, found)


def _selected(
    kernels: Any,
    inputs: tuple[Array, ...],
    output: Array,
    seen: tuple[Array, Array],
    scale: float,
    kind: str,
    alpha: Array,
) -> tuple[Array, Array, Array] | None:
    """Fill the output (G, R, E) and return what was selected; None if a score is not finite."""
    queries, keys = inputs[:2]
    shape = queries.shape[0] * queries.shape[1], keys.shape[1]
    weights, columns = np.empty(shape, queries.dtype), np.empty(shape, np.int32)
    counts = np.empty(shape[0], np.int64)
    done = over_rows(
        kernels.few_queries,
        shape[0],
        weights.size * queries.shape[2] // _PRODUCTS,
        inputs,
        weights.dtype.type(scale),
        *seen,
        alpha,
        KINDS[kind],
        is_steep(kind, alpha),
        weights,
        columns,
        counts,
        output,
    )
    return (weights, counts, columns) if all(done) else None


def backward(
    state: State, queries: Tensor, keys: Tensor, values: Tensor, cotangent: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """See `hopfy._kernels.attention`."""
    weights, counts, columns = (torch.from_numpy(x) for x in state.selected)
    support = compacted(state.kernels, (weights, counts, columns))
    inputs = queries, keys, values
    gradients, in_parameter = list_gradients(state, support, inputs, cotangent, wanted)
    return *gradients, in_parameter if wanted else None
