"""NumPy and torch: checked tensors inside, answers in the kind that came."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopfy._checks import expanded
from hopfy.memory._equal_lengths import squared_lengths

__all__ = [
    "ArrayLike",
    "as_count",
    "as_ids",
    "as_mask",
    "as_patterns",
    "as_queries",
    "as_tensor",
    "as_values",
    "in_kind_of",
]

ArrayLike = Any
"""A torch tensor, a NumPy array or anything that `numpy.asarray` understands."""


def as_tensor(array: ArrayLike, name: str) -> Tensor:
    """A detached tensor of numbers, without a copy where none is needed."""
    if isinstance(array, Tensor):
        tensor = array.detach()
    else:
        try:
            raw = np.asarray(array)
        except ValueError:
            raise ValueError(f"expected {name} to be rectangular, got ragged rows.") from None
        if raw.dtype.kind not in "biuf":
            raise TypeError(
                f"expected {name} to hold real numbers, got {type(array).__name__} of dtype "
                f"{raw.dtype}."
            )
        if not raw.flags.writeable or raw.dtype.byteorder == ">" or any(s < 0 for s in raw.strides):
            raw = np.array(raw, dtype=raw.dtype.newbyteorder("="))
        if raw.dtype.kind in "iu":  # C's long long has a type of its own
            raw = raw.astype(f"{raw.dtype.kind}{raw.dtype.itemsize}", copy=False)
        try:
            tensor = torch.from_numpy(raw)
        except TypeError:
            tensor = torch.from_numpy(raw.astype(np.float64))
    if tensor.is_complex() or tensor.is_sparse or tensor.is_quantized:
        raise TypeError(f"expected {name} to hold dense real numbers, got {tensor.dtype}.")
    return tensor


def as_count(number: Any, name: str, most: int | None = None) -> int:
    """An integer from 1 to ``most``."""
    try:
        count = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        count = 0
    if count < 1 or (most is not None and count > most):
        bound = ">= 1" if most is None else f"from 1 to {most}"
        raise ValueError(f"expected {name} to be an integer {bound}, got {number!r}.")
    return count


def in_kind_of(answer: Tensor, question: ArrayLike) -> Any:
    """``answer`` as a tensor on the question's device, or as a NumPy array."""
    if isinstance(question, Tensor):
        return answer if answer.device == question.device else answer.to(question.device)
    return answer.cpu().numpy()


def as_patterns(patterns: ArrayLike, dim: int | None, dtype: torch.dtype | None) -> Tensor:
    """Patterns as finite floating rows (M, D); one pattern may come without its row dimension."""
    tensor = as_tensor(patterns, "patterns")
    if tensor.ndim == 1:
        tensor = tensor.unsqueeze(0)
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise ValueError(
            f"expected patterns of shape (M, D), one per row, got shape {tuple(tensor.shape)}; "
            "flatten images with .reshape(len(images), -1)."
        )
    if dim is not None and tensor.shape[1] != dim:
        raise ValueError(
            f"expected patterns with the memory's {dim} coordinates, got {tensor.shape[1]}."
        )
    tensor = tensor.to(dtype or _store_dtype(tensor.dtype))
    check_finite(tensor, "patterns")
    # Scores are sums of D products: they must fit the dtype with room for beta's part.
    limit = torch.finfo(tensor.dtype).max / 16
    largest = max((abs(float(extreme)) for extreme in _extremes(tensor)), default=0.0)
    bound = tensor.shape[1] * largest * largest
    if bound > limit and float(squared_lengths(tensor).max()) > limit:
        raise ValueError(
            f"expected patterns whose squared lengths fit {tensor.dtype}, got larger ones; "
            "rescale them."
        )
    return tensor


def _store_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype is torch.float64 else torch.float32


def _extremes(rows: Tensor) -> tuple[Tensor, ...]:
    return tuple(rows.aminmax()) if rows.numel() else ()


def check_finite(rows: Tensor, name: str) -> None:
    """Raise an error that names the first row with a NaN or an infinity."""
    # Extremes carry NaN and infinity, and need no copy.
    if all(bool(extreme.isfinite()) for extreme in _extremes(rows)):
        return
    wrong = ~rows.isfinite().flatten(1).all(1)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise ValueError(
            f"expected finite {name}, got NaN or infinity in row {first} "
            f"({int(wrong.sum())} such rows); fix or drop them."
        )


def as_queries(queries: ArrayLike, dim: int, dtype: torch.dtype) -> Tensor:
    """Queries (..., D) in the store's dtype; `fill` checks those coordinates that are known."""
    tensor = as_tensor(queries, "queries")
    if tensor.ndim == 0 or tensor.shape[-1] != dim:
        raise ValueError(
            f"expected queries with the memory's {dim} coordinates in the last dimension, got "
            f"shape {tuple(tensor.shape)}."
        )
    return tensor.to(dtype)


def as_mask(mask: ArrayLike | None, queries: Tensor) -> Tensor | None:
    """The mask of known coordinates broadcast to the queries, None where all are known."""
    if mask is None:
        return None
    known = as_tensor(mask, "mask")
    if known.dtype is not torch.bool:
        raise TypeError(
            "expected mask to be boolean (True = the cue really contains this coordinate), got "
            f"{known.dtype}."
        )
    known = known.to(queries.device)
    return expanded(known, queries.shape, "mask to broadcast to the queries' shape")


def as_values(values: ArrayLike, count: int, like: Tensor | None) -> Tensor:
    """One value (a number or an array) per pattern, in the dtype and shape of the stored ones."""
    tensor = as_tensor(values, "values")
    if tensor.dtype in _SIGNED:
        tensor = _signed(tensor)
    if tensor.ndim == 0:
        tensor = tensor.expand(count)  # one value for all
    if tensor.shape[0] != count:
        raise ValueError(
            f"expected one value for each of the {count} patterns, got shape {tuple(tensor.shape)}."
        )
    if like is None:
        return tensor
    if tensor.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"expected values of shape {tuple(like.shape[1:])} each, as stored, got "
            f"{tuple(tensor.shape[1:])}."
        )
    if like.is_floating_point() != tensor.is_floating_point():
        raise TypeError(
            f"expected values of dtype {like.dtype}, as stored, got {tensor.dtype}; floating "
            "values are averaged and integers vote, so they do not mix."
        )
    return tensor.to(like.dtype)


# Torch selects no rows of these unsigned integers.
_SIGNED = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}


def _signed(values: Tensor) -> Tensor:
    """Unsigned integers in a signed dtype that holds them."""
    signed = values.to(_SIGNED[values.dtype])
    if values.dtype is torch.uint64 and bool((signed < 0).any()):
        raise ValueError(
            "expected integer values below 2**63, got larger ones; store them as texts."
        )
    return signed


def as_ids(ids: ArrayLike, name: str = "ids") -> Tensor:
    """Ids as a flat int64 tensor on the CPU."""
    tensor = as_tensor(ids, name)
    if tensor.is_floating_point() or tensor.dtype is torch.bool:
        if tensor.numel():
            raise TypeError(f"expected {name} to be integers, got {tensor.dtype}.")
        tensor = tensor.long()
    if tensor.ndim > 1:
        raise ValueError(f"expected {name} in one dimension, got shape {tuple(tensor.shape)}.")
    if tensor.dtype is torch.uint64 and bool((tensor.to(torch.float64) >= 2.0**63).any()):
        largest = int(tensor.cpu().numpy().max())
        raise ValueError(f"expected {name} below 2**63, got {largest}; number them anew.")
    return tensor.reshape(-1).to("cpu", torch.int64)
