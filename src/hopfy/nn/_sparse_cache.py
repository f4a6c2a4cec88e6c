"""A cache of keys and values for exact sparse decoding."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hopfy import functional as F
from hopfy._kernels.attention import decoding
from hopfy.omega import Omega, omega_from

__all__ = ["CacheStats", "SparseCache"]


class CacheStats(NamedTuple):
    """What decoding steps have cost, counted per query and head.

    ``keys`` were there, ``read`` were read in full, and ``selected`` got weight; the others were
    ruled out by their 8-bit codes.
    """

    steps: int
    keys: int
    read: int
    selected: int

    @property
    def share_read(self) -> float:
        """The share of the keys that was read."""
        return self.read / self.keys if self.keys else 0.0


class SparseCache:
    r"""Keys and values that grow, and queries that read only the keys that can have weight.

    A sparse map gives most keys no weight, and says so exactly: those whose score lies below a
    threshold. Every key has an 8-bit code with a bound on what the code loses. Scores of codes give
    lower bounds of all scores, hence of the threshold, and upper bounds, which rule keys out. The
    others are read, and the weights are those of attention over all keys: nothing is approximate.

    Memory: the keys and values, and one byte per entry of a key. It is for inference: nothing is
    differentiable here. Entmax (1 < alpha <= 2) and normmax in float32 or float64 on the CPU decode
    sparsely; for other maps, and for several queries at a time, `attend` computes with all keys.

    >>> import torch, hopfy
    >>> cache = hopfy.nn.SparseCache()
    >>> keys, values = torch.randn(2, 1, 2, 500, 16)  # (batch, heads, length, features)
    >>> cache.append(keys, values)
    >>> query = torch.randn(1, 4, 1, 16)  # two query heads for each key head
    >>> found = cache.attend(query, "sparsemax")
    >>> wanted = hopfy.functional.attention(query, keys, values, omega="sparsemax", enable_gqa=True)
    >>> torch.allclose(found, wanted, atol=1e-6)
    True
    >>> cache.stats().keys
    2000
    """

    def __init__(self) -> None:
        self._length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._codes: decoding.Codes | None = None
        self._arrays: Any = None  # the keys and values as the compiled step reads them
        self._counts = [0, 0, 0, 0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}  # views, which a copy would copy again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._codes is not None and self._keys is not None and self._values is not None:
            self._arrays = decoding.arrays_of(self._keys, self._values)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        if self._keys is None:
            return "SparseCache(empty)"
        batch, heads, _, size = self._keys.shape
        return f"SparseCache(batch={batch}, heads={heads}, length={self._length}, features={size})"

    @property
    def keys(self) -> Tensor:
        """All keys (batch, heads, length, features), a view."""
        return self._stored(self._keys)

    @property
    def values(self) -> Tensor:
        """All values (batch, heads, length, features), a view."""
        return self._stored(self._values)

    def _stored(self, part: Tensor | None) -> Tensor:
        if part is None:
            raise ValueError("expected keys in the cache, got an empty one; append some first.")
        return part[:, :, : self._length]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add keys (batch, heads, new, D) and values (batch, heads, new, E) at the end."""
        self._check(keys, values)
        keys, values = keys.detach(), values.detach()
        first, self._length = self._length, self._length + keys.shape[2]
        self._keys = _grown(self._keys, keys, first, self._length)
        self._values = _grown(self._values, values, first, self._length)
        self._keys[:, :, first : self._length] = keys
        self._values[:, :, first : self._length] = values
        if decoding.can_encode(self._keys):
            self._arrays = decoding.arrays_of(self._keys, self._values)
            self._codes = decoding.encode(self._codes, self._keys, first, self._length)

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold these keys and values instead: after a beam search reordered them, for example."""
        keys, values = keys.clone(), values.clone()
        self._length, self._keys, self._values, self._codes = 0, None, None, None
        self.append(keys, values)

    def attend(
        self,
        query: Tensor,
        omega: Omega | str | nn.Module = "1.5-entmax",
        *,
        scale: float | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """`hopfy.functional.attention` of query (batch, Hq, M, D) over all keys, heads grouped.

        ``mask`` is True where a key takes part, broadcasting to (batch, Hq, M, N). Several queries
        of one call all see all keys.
        """
        omega = omega if isinstance(omega, nn.Module) else omega_from(omega)
        room = self.keys if self._keys is None else self._keys
        _check_query(query, room, scale)
        ranges = self._ranges(query, mask)
        form = decoding.form_of(getattr(omega, "closed_form", None), query)
        if ranges is None or form is None or self._codes is None or query.dtype != room.dtype:
            rows, shared = query.shape[:3].numel(), query.shape[1] != room.shape[1]
            self._count(rows, rows * len(self), rows * len(self), 0)
            found: Tensor = F.attention(
                query, self.keys, self.values, mask, scale=scale, enable_gqa=shared, omega=omega
            )
            return found
        scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
        output, read, chosen = decoding.decode(
            self._codes, query.detach(), self._arrays, ranges, scale, form
        )
        total = int(np.maximum(ranges[1] - ranges[0], 0).sum())
        self._count(len(read), total, int(read.sum()), int(chosen.sum()))
        return output

    def stats(self) -> CacheStats:
        """What all steps since the last `reset_stats` have cost."""
        return CacheStats(*self._counts)

    def reset_stats(self) -> None:
        """Count from zero again."""
        self._counts = [0, 0, 0, 0]

    def _count(self, *amounts: int) -> None:
        self._counts = [a + b for a, b in zip(self._counts, amounts, strict=True)]

    def _ranges(self, query: Tensor, mask: Tensor | None) -> Any:
        """The first and one past the last key of every query; None if that does not say it all."""
        batch, heads, rows, _ = query.shape
        recorded = torch.is_grad_enabled() and query.requires_grad
        if rows != 1 or recorded or not decoding.is_finite(query):
            return None
        count = batch * heads
        if mask is None:
            return np.zeros(count, np.int64), np.full(count, len(self))
        shape = (batch, heads, rows, len(self))
        fits = mask.ndim <= 4 and all(
            size in (1, wanted) for size, wanted in zip(mask.shape[::-1], shape[::-1], strict=False)
        )
        if mask.dtype is not torch.bool or mask.shape[-1] != len(self) or not fits:
            return None
        flat = mask.expand(batch, heads, 1, len(self)).reshape(count, -1)
        first = flat.to(torch.uint8).argmax(-1)
        total = flat.sum(-1)
        place = torch.arange(len(self))
        solid = (place >= first[:, None]) & (place < (first + total)[:, None])
        if not torch.equal(solid, flat):
            return None
        return first.numpy(), (first + total).numpy()

    def _check(self, keys: Any, values: Any) -> None:
        for name, x in (("keys", keys), ("values", values)):
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim != 4:
                came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(
                    f"expected {name} as a floating tensor (batch, heads, new, features), got {came}."
                )
        if keys.shape[:3] != values.shape[:3] or keys.dtype != values.dtype:
            raise ValueError(
                "expected one value for each key, of the same dtype, got shapes "
                f"{tuple(keys.shape)} ({keys.dtype}) and {tuple(values.shape)} ({values.dtype})."
            )
        for name, x, own in (("keys", keys, self._keys), ("values", values, self._values)):
            if own is not None and (
                x.shape[:2] != own.shape[:2] or x.shape[3] != own.shape[3] or x.dtype != own.dtype
            ):
                raise ValueError(
                    f"expected {name} like those in the cache, {tuple(own.shape[:2])} x new x "
                    f"{own.shape[3]} of {own.dtype}, got {tuple(x.shape)} of {x.dtype}."
                )
        if keys.device.type == "cpu" and not bool(keys.isfinite().all()):
            raise ValueError("expected finite keys, got NaN or infinity in them.")


def _check_query(query: Any, keys: Tensor, scale: Any) -> None:
    """The compiled step reads as many heads and features as the query says it has."""
    batch, heads, _, size = keys.shape
    if not isinstance(query, Tensor) or query.ndim != 4:
        came = tuple(query.shape) if isinstance(query, Tensor) else type(query).__name__
        raise ValueError(
            f"expected a query of shape (batch, heads, queries, features), got {came}."
        )
    if query.device != keys.device:
        raise TypeError(
            f"expected a query on the cache's device {keys.device}, got {query.device}."
        )
    if query.shape[0] != batch or query.shape[1] % heads or query.shape[3] != size:
        raise ValueError(
            f"expected a query of batch {batch}, a multiple of {heads} heads and {size} features, "
            f"like the keys in the cache, got shape {tuple(query.shape)}."
        )
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale)):
        raise ValueError(f"expected scale to be a finite number, got {scale!r}.")


def _grown(store: Tensor | None, like: Tensor, used: int, needed: int) -> Tensor:
    """Room for ``needed`` rows; it doubles, so that appending one by one stays cheap."""
    if store is not None and store.shape[2] >= needed:
        return store
    capacity = decoding.PAGE * math.ceil(max(needed, 2 * used) / decoding.PAGE)
    larger = like.new_empty(*like.shape[:2], capacity, like.shape[3])
    if store is not None:
        larger[:, :, :used] = store[:, :, :used]
    return larger
