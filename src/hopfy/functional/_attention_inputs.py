"""Reading the arguments of attention: shapes, dtypes, masks, grouped heads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._checks import values_can_be_read
from hopfy._runtime.precision import autocast_is_on

__all__ = ["Inputs", "as_inputs", "fit_at_a_glance"]


class Inputs(NamedTuple):
    """Checked arguments of attention.

    ``batch`` is the common leading shape of the queries; with grouped heads the last of it counts
    the query heads, ``repeat`` times as many as the key heads. ``mask`` (True = takes part) and
    ``bias`` broadcast to (*batch, M, N); ``causal`` is the offset c of the condition
    ``key <= query + c``, None without one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    batch: tuple[int, ...]
    repeat: int
    mask: Tensor | None
    bias: Tensor | None
    causal: int | None
    scale: float
    dropout: float

    @property
    def weights_shape(self) -> tuple[int, ...]:
        return (*self.batch, self.query.shape[-2], self.key.shape[-2])

    def widened(self) -> Inputs:
        """The same in float32 where the CPU would compute in fewer digits."""
        dtype = self.query.dtype
        if self.query.device.type == "cpu" and dtype in (torch.float16, torch.bfloat16):
            dtype = torch.float32
        bias = None if self.bias is None else self.bias.to(dtype)
        if dtype == self.query.dtype:
            return self if bias is self.bias else self._replace(bias=bias)
        q, k, v = (x.to(dtype) for x in (self.query, self.key, self.value))
        return self._replace(query=q, key=k, value=v, bias=bias)

    def rows(self, first: int, last: int) -> Inputs:
        """The same for the queries from ``first`` up to ``last``."""
        mask, bias = (
            x if x is None or x.shape[-2] == 1 else x[..., first:last, :]
            for x in (self.mask, self.bias)
        )
        causal = None if self.causal is None else self.causal + first
        query = self.query[..., first:last, :]
        return self._replace(query=query, mask=mask, bias=bias, causal=causal)

    def heads_repeated(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values with as many heads as the queries."""
        if self.repeat == 1:
            return self.query, self.key, self.value
        key, value = (x.repeat_interleave(self.repeat, -3) for x in (self.key, self.value))
        return self.query, key, value

    def heads_as_queries(self) -> Inputs:
        """The same with the query heads that share a key head as more queries of one head.

        Nothing is copied for them then. Where a condition tells queries or heads apart, they stay.
        """
        conditions = [x for x in (self.mask, self.bias) if x is not None]
        apart = any(size != 1 for x in conditions for size in x.shape[-3:-1])
        if self.repeat == 1 or self.causal is not None or apart:
            return self
        groups = self.key.shape[-3]
        query = self.query.reshape(*self.query.shape[:-3], groups, -1, self.query.shape[-1])
        return self._replace(query=query, batch=(*self.batch[:-1], groups), repeat=1)

    def causal_mask(self) -> Tensor | None:
        """The causal condition as a boolean (M, N)."""
        if self.causal is None:
            return None
        rows, keys = self.weights_shape[-2:]
        device = self.query.device
        position = torch.arange(rows, device=device)[:, None] + self.causal
        return torch.arange(keys, device=device) <= position

    def full_mask(self) -> Tensor | None:
        """Where a key takes part, all conditions together."""
        causal = self.causal_mask()
        if causal is None or self.mask is None:
            return self.mask if causal is None else causal
        return self.mask & causal


def as_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Inputs:
    """The arguments of attention, checked."""
    if fit_at_a_glance(query, key, value):
        batch, repeat = tuple(query.shape[:-2]), 1
    else:
        _check_tensors(query, key, value)
        if query.dtype != key.dtype or key.dtype != value.dtype:  # only autocast lets them differ
            dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        batch, repeat = _batch(query, key, value, enable_gqa)
    if not isinstance(dropout_p, int | float) or not 0 <= dropout_p <= 1:
        raise ValueError(f"expected dropout_p from 0 to 1, got {dropout_p!r}.")
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    elif not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(
            f"expected scale to be a finite number, got {scale!r}; multiply the queries by a tensor."
        )
    shape = (*batch, query.shape[-2], key.shape[-2])
    mask, bias, causal = _read_mask(attn_mask, shape, query, is_causal)
    return Inputs(
        query, key, value, batch, repeat, mask, bias, causal, float(scale), float(dropout_p)
    )


def fit_at_a_glance(query: Any, key: Any, value: Any) -> bool:
    """The common case, checked quickly: plain tensors of one dtype with as many heads and features."""
    return (
        type(query) is type(key) is type(value) is Tensor
        and not (query.is_nested or key.is_nested or value.is_nested)
        and query.dtype is key.dtype is value.dtype
        and query.is_floating_point()
        and query.device == key.device == value.device
        and ((keys := key.shape) == (values := value.shape) or keys[:-1] == values[:-1])
        and (size := query.shape)[:-2] == keys[:-2]
        and len(size) > 1
        and size[-1] == keys[-1]
    )


def _check_tensors(query: Any, key: Any, value: Any) -> None:
    named = (("query", query), ("key", key), ("value", value))
    for name, x in named:
        if not isinstance(x, Tensor):
            raise TypeError(f"expected {name} to be a torch.Tensor, got {type(x).__name__}.")
        if x.is_nested:
            raise TypeError(
                f"expected {name} to be a padded tensor with a mask, got a nested tensor; convert "
                "with torch.nested.to_padded_tensor."
            )
        if not x.is_floating_point():
            raise TypeError(f"expected {name} of a floating dtype, got {x.dtype}.")
        if x.ndim < 2:
            raise ValueError(
                f"expected {name} of shape (..., length, features), got {tuple(x.shape)}."
            )
    same_dtype = query.dtype == key.dtype == value.dtype or autocast_is_on(query)
    if not same_dtype or not query.device == key.device == value.device:
        came = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in named)
        raise TypeError(f"expected query, key and value of one dtype and device, got {came}.")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "expected query and key with as many features as each other, got "
            f"{query.shape[-1]} and {key.shape[-1]}."
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"expected one value for each of the {key.shape[-2]} keys, got {value.shape[-2]} values."
        )


def _batch(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[tuple[int, ...], int]:
    """The leading shape of the queries and how many of their heads share a key head."""
    repeat = 1
    leads = [tuple(x.shape[:-2]) for x in (query, key, value)]
    if enable_gqa:
        if min(map(len, leads)) < 1 or leads[1][-1] != leads[2][-1]:
            raise ValueError(
                "expected enable_gqa with shapes (..., heads, length, features) and as many heads "
                f"of keys as of values, got {', '.join(str(tuple(x.shape)) for x in (query, key, value))}."
            )
        heads, shared = leads[0][-1], leads[1][-1]
        if shared == 0 or heads % shared:
            raise ValueError(
                f"expected a number of query heads that the {shared} key heads divide, got {heads}."
            )
        repeat = heads // shared
        leads[1:] = [(*lead[:-1], heads) for lead in leads[1:]]
    if leads[0] == leads[1] == leads[2]:
        return leads[0], repeat
    try:
        batch = torch.broadcast_shapes(*leads)  # type: ignore[no-untyped-call]
    except RuntimeError:
        hint = "" if enable_gqa else "; pass enable_gqa=True if the queries have more heads"
        raise ValueError(
            "expected query, key and value of the same batch and heads, got shapes "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}{hint}."
        ) from None
    return tuple(batch), repeat


def _read_mask(
    attn_mask: Any, shape: tuple[int, ...], query: Tensor, is_causal: bool
) -> tuple[Tensor | None, Tensor | None, int | None]:
    """The mask as a boolean, a bias and a causal offset, each None if there is none."""
    causal = 0 if is_causal else None
    if attn_mask is None:
        return None, None, causal
    if type(attn_mask).__name__ == "CausalBias":
        return None, None, _causal_bias(attn_mask, shape, is_causal)
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"expected attn_mask to be a torch.Tensor, got {type(attn_mask).__name__}.")
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise TypeError(
            "expected attn_mask to be boolean (True = takes part), float32 or of the query's dtype "
            f"{query.dtype} (added to the scores), got {attn_mask.dtype}."
        )
    if attn_mask.device != query.device:
        raise TypeError(
            f"expected attn_mask on the query's device {query.device}, got {attn_mask.device}."
        )
    fits = attn_mask.ndim <= len(shape) and all(
        size in (1, wanted)
        for size, wanted in zip(attn_mask.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"expected attn_mask that broadcasts to (batch, heads, queries, keys) {shape}, got shape "
            f"{tuple(attn_mask.shape)}; give a mask of keys the shape (batch, 1, 1, keys)."
        )
    # Kernels step from key to key, and torch's own want queries and keys.
    attn_mask = attn_mask.expand(*(1,) * (2 - attn_mask.ndim), *attn_mask.shape)
    if attn_mask.shape[-1] != shape[-1]:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], shape[-1])
    if attn_mask.dtype is torch.bool:
        return attn_mask, None, causal
    if values_can_be_read(attn_mask) and attn_mask.numel():
        largest = float(attn_mask.detach().max())  # NaN if there is one
        if not largest < math.inf:
            raise ValueError(
                "expected attn_mask with finite numbers or -inf, got "
                f"{'NaN' if math.isnan(largest) else 'infinity'} in it."
            )
    return None, attn_mask, causal


def _causal_bias(attn_mask: Any, shape: tuple[int, ...], is_causal: bool) -> int:
    rows, keys = shape[-2:]
    if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != (rows, keys):
        raise ValueError(
            f"expected a causal bias for {rows} queries and {keys} keys, got one for "
            f"{attn_mask.seq_len_q} and {attn_mask.seq_len_kv}."
        )
    offset = 0 if attn_mask.variant.name == "UPPER_LEFT" else keys - rows
    if is_causal and offset:
        raise ValueError(
            "expected is_causal=False (which aligns the upper left corner) with "
            "causal_lower_right, got both; drop is_causal."
        )
    return offset
