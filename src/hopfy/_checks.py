"""Input validation: every check of an argument and its error message.

Every message says what was expected, what came, and (where it is not plain) what to do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from hopfy._runtime.dispatch import (
    is_compiling,
    is_tracing,
    transforms_are_active,
    values_can_be_read,
)

__all__ = [
    "BETA",
    "ENTMAX_ALPHA",
    "NORMMAX_ALPHA",
    "SUBSET_SIZE",
    "Gradient",
    "Rule",
    "as_dim",
    "as_floating",
    "as_mask",
    "as_memories",
    "as_parameter",
    "as_patterns",
    "as_positive",
    "as_queries",
    "as_scores",
    "as_states",
    "as_weights",
    "check_count",
    "check_parameter",
    "check_range",
    "check_retrieval",
    "constant",
    "domain_tolerance",
    "expanded",
    "finite_norms",
    "masked",
    "number_of",
    "one_hot",
    "values_can_be_read",
]

Gradient = Literal["unrolled", "last", "implicit"]


def as_scores(scores: object, name: str = "scores") -> Tensor:
    """Return ``scores`` if it is a real floating tensor with at least one dimension."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"expected {name} to be a torch.Tensor, got {type(scores).__name__}; "
            "wrap it with torch.as_tensor(...)."
        )
    if not scores.is_floating_point():
        raise TypeError(
            f"expected {name} of a floating dtype, got {scores.dtype}; convert with .float()."
        )
    if scores.ndim == 0:
        raise ValueError(f"expected {name} with at least one dimension, got a 0-d tensor.")
    return scores


def as_dim(dim: int, ndim: int) -> int:
    """Return ``dim`` as a non-negative index into ``ndim`` dimensions."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"expected dim to be an integer, got {dim!r}.")
    if not -ndim <= dim < ndim:
        raise IndexError(f"expected dim in [{-ndim}, {ndim - 1}] for {ndim}-d scores, got {dim}.")
    return dim % ndim


def as_mask(mask: object, scores: Tensor) -> Tensor:
    """Return ``mask`` broadcast to ``scores`` (True = may be selected)."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"expected mask to be a boolean tensor (True = may be selected), got {came}."
        )
    return expanded(mask, scores.shape, "a mask that broadcasts to the scores' shape")


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Checked scores with -inf where the mask is False."""
    scores = as_scores(scores)
    return scores if mask is None else scores.masked_fill(~as_mask(mask, scores), -torch.inf)


def as_weights(weights: object, scores: Tensor, name: str = "target") -> Tensor:
    """Return ``weights`` (floating, same shape as ``scores``) in the scores' dtype."""
    if not isinstance(weights, Tensor):
        raise TypeError(f"expected {name} to be a torch.Tensor, got {type(weights).__name__}.")
    weights = weights.to(scores.dtype)
    return expanded(weights, scores.shape, f"{name} that broadcasts to the scores' shape")


def expanded(tensor: Tensor, shape: torch.Size, wanted: str) -> Tensor:
    """Return ``tensor`` broadcast to ``shape``; an error says what was ``wanted``."""
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"expected {wanted} {tuple(shape)}, got shape {tuple(tensor.shape)}."
        ) from None


def check_count(number: object, name: str, least: int = 1) -> None:
    """Raise unless it is an integer of at least ``least``."""
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not whole or number < least:  # type: ignore[operator]
        raise ValueError(f"expected {name} to be an integer of at least {least}, got {number!r}.")


def check_retrieval(max_steps: object, tol: Any, gradient: object, state: Any) -> None:
    """Check the options of `retrieve`."""
    check_count(max_steps, "max_steps")
    if tol is not None and not tol >= 0:
        raise ValueError(f"expected tol >= 0 or None, got {tol!r}.")
    if gradient not in get_args(Gradient):
        raise ValueError(f"expected gradient to be one of {get_args(Gradient)}, got {gradient!r}.")
    if gradient == "implicit" and not state.is_identity:
        raise ValueError(
            "expected gradient='unrolled' or 'last', as the implicit gradient needs a symmetric "
            f"Jacobian, which the state {state} does not have, got 'implicit'."
        )


def as_patterns(memories: object, name: str = "memories") -> Tensor:
    """Return ``memories`` if it is a finite floating tensor (..., N, D) with N >= 1."""
    memories = as_scores(memories, name)
    if memories.ndim < 2:
        raise ValueError(
            f"expected {name} of shape (..., N, D), one pattern per row, got shape "
            f"{tuple(memories.shape)}; add a dimension with {name}[None]."
        )
    if memories.shape[-2] == 0:
        raise ValueError(
            f"expected at least one pattern in {name}, got shape {tuple(memories.shape)}."
        )
    if values_can_be_read(memories) and not _all_finite(memories.detach()):
        raise ValueError(
            f"expected finite {name}, got NaN or infinity in them; remove those patterns."
        )
    return memories


def _all_finite(tensor: Tensor) -> bool:
    # Extremes propagate NaN and infinity without a boolean copy of the whole tensor.
    return tensor.numel() == 0 or all(bool(extreme.isfinite()) for extreme in tensor.aminmax())


def as_states(queries: object, memories: Tensor) -> Tensor:
    """Return ``queries`` (..., D) if they fit the memories (..., N, D)."""
    if type(queries) is not Tensor or queries.dtype is not memories.dtype or not queries.ndim:
        queries = as_scores(queries, "queries")
    if queries.dtype is not memories.dtype or queries.device != memories.device:
        raise TypeError(
            f"expected queries like the memories ({memories.dtype} on {memories.device}), got "
            f"{queries.dtype} on {queries.device}; convert with queries.to(memories)."
        )
    batch, dimension = memories.shape[:-2], memories.shape[-1]
    if queries.shape[-1] != dimension:
        raise ValueError(
            f"expected queries of shape (..., M, {dimension}) for memories of shape "
            f"{tuple(memories.shape)}, got shape {tuple(queries.shape)}."
        )
    if batch and (queries.ndim < 2 or queries.shape[:-2] != batch):
        raise ValueError(
            f"expected queries of shape {(*batch, 'M', dimension)} for batched memories of shape "
            f"{tuple(memories.shape)}, got shape {tuple(queries.shape)}."
        )
    return queries


class Rule(NamedTuple):
    """What a map's parameter must satisfy; ``valid`` takes a number or a tensor."""

    name: str
    expected: str
    valid: Callable[[Any], Any]


ENTMAX_ALPHA = Rule("alpha", ">= 1 (1 is softmax, 2 is sparsemax, inf is argmax)", lambda a: a >= 1)
NORMMAX_ALPHA = Rule("alpha", "> 1 (inf is uniform over the best top set)", lambda a: a > 1)
BETA = Rule("beta", "> 0 and finite", lambda b: (b > 0) & (b < float("inf")))
SUBSET_SIZE = Rule("k", ">= 0", lambda k: k >= 0)


def check_parameter(value: object, rule: Rule) -> None:
    """Raise an error unless ``value`` is a number, or a tensor of numbers, that obeys the rule."""
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise TypeError(f"expected {rule.name} to be a number or a tensor, got {value!r}.")
    if not isinstance(value, Tensor):
        if not rule.valid(value):
            raise ValueError(f"expected {rule.name} {rule.expected}, got {value}.")
        return
    if value.is_complex() or value.dtype is torch.bool:
        raise TypeError(f"expected {rule.name} of a real dtype, got {value.dtype}.")
    if values_can_be_read(value):
        wrong = ~rule.valid(value.detach())
        if bool(wrong.any()):
            first = value.detach()[wrong].flatten()[0].item()
            raise ValueError(f"expected every {rule.name} {rule.expected}, got {first:g} in it.")


def as_parameter(value: float | Tensor, scores: Tensor, dim: int, rule: Rule) -> Tensor:
    """Return a map's parameter (``alpha``, ``k``) as a tensor beside the rows.

    A number gives a 0-d tensor. A tensor with as many dimensions as the scores must have size 1
    along ``dim``; one with fewer broadcasts over the rows, that is over ``scores.shape`` without
    ``dim``. Either way the result broadcasts against the scores with ``dim`` moved last.
    """
    check_parameter(value, rule)
    value = as_floating(value, scores)
    return value if value.ndim == 0 else _beside_rows(value, scores, dim, rule.name)


def as_floating(value: float | Tensor, scores: Tensor) -> Tensor:
    """A number as a 0-d tensor beside the scores, a tensor of integers as one of floats."""
    if not isinstance(value, Tensor):
        return constant(float(value), scores)
    if value.is_floating_point():
        return value
    return value.to(torch.float64 if value.device.type == "cpu" else torch.float32)


def constant(value: float, beside: Tensor) -> Tensor:
    """A 0-d float64 tensor for use beside another one, whatever the default device is.

    Calls with the same number share it: nothing writes to it.
    """
    # A tracer needs a tensor of its own, and one made inside a transform ends with it.
    if is_compiling() or is_tracing() or transforms_are_active() or type(beside) is not Tensor:
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    return _shared_constant(value)


@lru_cache(maxsize=1024)
def _shared_constant(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def _beside_rows(value: Tensor, scores: Tensor, dim: int, name: str) -> Tensor:
    rows = scores.shape[:dim] + scores.shape[dim + 1 :]
    try:
        if value.ndim == scores.ndim and value.shape[dim] == 1:
            value = value.movedim(dim, -1)
            return value.expand(*rows, 1)
        if value.ndim < scores.ndim:
            return value.expand(rows).unsqueeze(-1)
    except RuntimeError:
        pass
    raise ValueError(
        f"expected {name} to broadcast over the rows {tuple(rows)} of scores with shape "
        f"{tuple(scores.shape)} (dim={dim}), got shape {tuple(value.shape)}."
    )


def as_memories(memories: object, like: Tensor | None = None) -> Tensor:
    """Return ``memories`` (N, D) detached and contiguous, in the dtype and width of ``like``.

    A NumPy array, memory-mapped or not, is read in place. The entries are not looked at.
    """
    if isinstance(memories, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # nothing here writes
            memories = torch.from_numpy(memories)
    if not isinstance(memories, Tensor):
        raise TypeError(f"expected memories to be a torch.Tensor, got {type(memories).__name__}.")
    if not memories.is_floating_point():
        raise TypeError(f"expected memories of a floating dtype, got {memories.dtype}.")
    if memories.ndim != 2 or 0 in memories.shape:
        raise ValueError(
            "expected memories of shape (N, D) with N and D at least 1, "
            f"got {tuple(memories.shape)}."
        )
    memories = memories.detach()
    if like is not None:
        if memories.shape[1] != like.shape[1]:
            raise ValueError(
                f"expected memories with {like.shape[1]} coordinates, as those that are stored, "
                f"got shape {tuple(memories.shape)}."
            )
        memories = memories.to(like)
    return memories.contiguous()


def finite_norms(memories: Tensor, first: int = 0) -> Tensor:
    """The norms (N,) of ``memories`` in float64; an error if one of them is not finite.

    ``first`` is the number of the first row, for the message.
    """
    count = memories.shape[0]
    norms = torch.empty(count, dtype=torch.float64, device=memories.device)
    # A float64 copy of all of them may not fit, and many short-lived ones fragment the heap.
    wide = torch.empty(
        min(count, 1024), memories.shape[1], dtype=torch.float64, device=norms.device
    )
    for start in range(0, count, 1024):
        rows = memories[start : start + 1024]
        part = wide[: rows.shape[0]].copy_(rows)
        torch.linalg.vector_norm(part, dim=1, out=norms[start : start + 1024])
    wrong = (~norms.isfinite()).nonzero()
    if wrong.numel():
        raise ValueError(
            "expected memories with finite entries and norms, got NaN, infinity or an overflow in "
            f"row {first + int(wrong[0])}; drop or repair it."
        )
    return norms


def as_queries(queries: object, memories: Tensor) -> Tensor:
    """Return ``queries`` (M, D) detached and in the memories' dtype."""
    if not isinstance(queries, Tensor):
        raise TypeError(f"expected queries to be a torch.Tensor, got {type(queries).__name__}.")
    if not queries.is_floating_point():
        raise TypeError(f"expected queries of a floating dtype, got {queries.dtype}.")
    if queries.ndim != 2 or queries.shape[1] != memories.shape[1]:
        raise ValueError(
            f"expected queries of shape (M, {memories.shape[1]}) for memories of shape "
            f"{tuple(memories.shape)}, got {tuple(queries.shape)}."
        )
    wide = torch.float32 if memories.dtype.itemsize == 2 else memories.dtype
    return queries.detach().to(wide)


def as_positive(value: object, name: str) -> float:
    """Return ``value`` as a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected {name} to be a number, got {value!r}.")
    if not 0 < value < math.inf:
        raise ValueError(f"expected {name} to be finite and > 0, got {value}.")
    return float(value)


def one_hot(indices: Tensor, scores: Tensor, dim: int, ignore_index: int, what: str) -> Tensor:
    """Ones at ``indices`` along ``dim`` of zeros like the scores; nothing at ``ignore_index``."""
    kept, size = indices != ignore_index, scores.shape[dim]
    check_range(indices[kept] if values_can_be_read(indices) else indices, size, what)
    zeros = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
    place = torch.where(kept, indices, 0).long().unsqueeze(dim)
    return zeros.scatter(dim, place, kept.to(zeros.dtype).unsqueeze(dim))


def check_range(indices: Tensor, size: int, what: str) -> None:
    """Raise an IndexError unless all indices are in [0, size)."""
    if not values_can_be_read(indices) or not indices.numel():
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise IndexError(f"expected {what} in [0, {size - 1}], got {wrong}.")


def number_of(value: object) -> float | None:
    """A parameter as one number; None if it is a tensor with one per row (or no number at all)."""
    if isinstance(value, Tensor):
        readable = value.ndim == 0 and values_can_be_read(value)
        return float(value.detach()) if readable else None
    return float(value) if isinstance(value, int | float) else None


def domain_tolerance(dtype: torch.dtype) -> float:
    """How far outside a domain rounding can take weights of this dtype."""
    return max(1e-5, math.sqrt(torch.finfo(dtype).eps))
