"""Attention with any map in place of softmax, in the conventions of torch's SDPA."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hopfy._facts import named
from hopfy._kernels import attention as kernel
from hopfy._runtime.backends import KERNEL_DTYPES, backend_for
from hopfy._runtime.dispatch import (
    forward_mode_is_active,
    is_compiling,
    is_exporting,
    records_gradients,
)
from hopfy._runtime.precision import autocast_dtype, autocast_is_on, outside_autocast
from hopfy.functional._attention_inputs import Inputs, as_inputs, fit_at_a_glance
from hopfy.functional._fused_attention import fused, traced
from hopfy.functional._softmax_attention import sdpa, torch_attention

__all__ = ["attend", "attention"]

# Scores of one head that may exist at once.
_BLOCK = 1 << 20
_FAMILIES = ("entmax", "normmax", "ksubsets")
_PLAIN = (Tensor, torch.nn.Parameter)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    omega: Any = "1.5-entmax",
    return_weights: bool = False,
) -> Any:
    r""":math:`\hat y_\Omega(\text{scale} \cdot Q K^\top + \text{bias})\, V`, for any regularizer.

    All arguments but the last two are those of `torch.nn.functional.scaled_dot_product_attention`,
    with the same meaning. A query that may not attend to any key gives zeros, forward and backward.
    Where the map selects few keys, neither the weights nor the gradients of the others are ever
    computed, and keys that a causal mask, a window or padding excludes for a whole block of queries
    cost nothing.

    Args:
        query: (..., Hq, M, D).
        key: (..., H, N, D).
        value: (..., H, N, E).
        attn_mask: boolean, **True where a key takes part**, or floating, added to the scores;
            broadcasts to (..., Hq, M, N). `torch.nn.attention.bias.causal_lower_right(M, N)` and
            ``causal_upper_left`` are accepted too.
        dropout_p: the share of the weights that is dropped (always, as in torch).
        is_causal: query i attends to keys 0 .. i (upper left); a mask holds in addition.
        scale: by default ``1 / sqrt(D)``.
        enable_gqa: Hq may be a multiple of H: each key head serves Hq / H query heads in a row.
        omega: the map: an `hopfy.Omega`, a name such as ``"sparsemax"``, or a callable
            ``omega(scores, mask)``. A tensor alpha broadcasts over (..., Hq, M): shape (Hq, 1) gives
            every head its own, and receives its gradient. Where a row has fewer visible keys than a
            structure selects, it takes all of them.
        return_weights: also return the weights (..., Hq, M, N), before dropout.

    Returns:
        The output (..., Hq, M, E), or the pair (output, weights).

    >>> import torch
    >>> from hopfy import functional as F
    >>> q, k, v = torch.randn(3, 2, 4, 10, 8).unbind()
    >>> F.attention(q, k, v, is_causal=True, omega="sparsemax").shape
    torch.Size([2, 4, 10, 8])
    """
    omega = as_map(omega)
    if attn_mask is None and scale is None and not (dropout_p or enable_gqa or return_weights):
        quick = _quickly(query, key, value, bool(is_causal), omega)
        if quick is not None:
            return quick
    inputs = as_inputs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    output, weights = attend(inputs, omega, need_weights=return_weights)
    return (output, weights) if return_weights else output


def _quickly(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, omega: Any
) -> Tensor | None:
    """Softmax, and one query, where nothing else is to be checked; None everywhere else.

    The general way takes as long as all products of one query with some thousands of keys.
    """
    family = _family(omega)
    if family is None or not _is_common(query, key, value):
        return None
    if family.kind == "softmax":
        return torch_attention(query, key, value, causal=is_causal)
    if isinstance(family.parameter, Tensor) or family.kind not in _FAMILIES:
        return None
    one_query = query.shape[-2] == 1 and not is_causal
    if not one_query or records_gradients(query, key, value) or is_compiling():
        return None
    if forward_mode_is_active() or backend_for(query) != "cpu":
        return None
    scale = 1 / math.sqrt(max(query.shape[-1], 1))
    return kernel.attend_one(query, key, value, family.kind, family.parameter, scale)


def _is_common(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Plain tensors of one dtype that is not widened, with at least one key."""
    return (
        fit_at_a_glance(query, key, value)
        and ((dtype := query.dtype) is torch.float32 or dtype is torch.float64)
        and key.shape[-2] > 0
        and not autocast_is_on(query)
    )


def attend(inputs: Inputs, omega: Any, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
    """`attention` on checked inputs; the weights are None unless they are needed."""
    omega = as_map(omega)
    dtype = autocast_dtype(inputs.query)
    with outside_autocast(inputs.query):
        output, weights = _attended(inputs.widened(), omega, need_weights)
    if output.dtype is not dtype:
        output = output.to(dtype)
    return output, None if weights is None else weights.to(dtype)


def _attended(inputs: Inputs, omega: Any, need_weights: bool) -> tuple[Tensor, Tensor | None]:
    output = None if need_weights else _without_weights(inputs, omega)
    if output is not None:
        return output, None
    if not need_weights and _can_be_divided(inputs, omega):
        return _by_blocks(inputs, omega), None
    output, weights = _dense(inputs, omega)
    return output, weights if need_weights else None


def _can_be_divided(inputs: Inputs, omega: Any) -> bool:
    """Whether some queries at a time are cheaper than all weights at once, and give the same."""
    sizes: tuple[Any, ...] = inputs.weights_shape[-2:]
    if not all(type(size) is int for size in sizes):  # a length that varies in a graph
        return False
    rows, keys = sizes
    return (
        rows * keys > _BLOCK
        and not getattr(omega, "varies_by_row", True)  # a map need not be an Omega
        and not (is_compiling() and not is_exporting())
        and not forward_mode_is_active()
    )


def _by_blocks(inputs: Inputs, omega: Any) -> Tensor:
    """`_dense` for some queries at a time; the backward pass computes the weights again."""
    rows, keys = inputs.weights_shape[-2:]
    step = max(64, _BLOCK // (2 * keys))
    parts = [inputs.rows(first, min(first + step, rows)) for first in range(0, rows, step)]
    tensors = (inputs.query, inputs.key, inputs.value, inputs.bias, *_tensors(omega))
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        found = [
            checkpoint(
                lambda part=part: _dense(part, omega)[0],
                use_reentrant=False,
                preserve_rng_state=bool(inputs.dropout),
            )
            for part in parts
        ]
    else:
        found = [_dense(part, omega)[0] for part in parts]
    return torch.cat(found, -2)


def _tensors(omega: Any) -> Any:
    return omega.tensors().values()


def as_map(omega: Any) -> Any:
    """A name as a map; anything that can be called as ``omega(scores, mask)`` as it is."""
    if callable(omega) and not isinstance(omega, type):
        return omega
    return named(omega)


class _Known(NamedTuple):
    kind: str
    parameter: float | Tensor


def _family(omega: Any) -> _Known | None:
    """The closed form of a map, if it has one; softmax is the entmax with alpha = 1."""
    found = getattr(omega, "closed_form", None)  # a map need not be an Omega
    if found is None:
        return None
    kind, parameter = found
    if kind == "entmax" and not isinstance(parameter, Tensor) and parameter == 1:
        return _Known("softmax", 1.0)
    return _Known(kind, parameter)


def _without_weights(inputs: Inputs, omega: Any) -> Tensor | None:
    """The output by a way that never holds all weights; None if there is none."""
    family = _family(omega)
    if family is None:
        return None
    if family.kind == "softmax":
        return sdpa(inputs)
    plain = (
        family.kind in _FAMILIES
        and not forward_mode_is_active()
        and type(inputs.key) in _PLAIN
        and type(inputs.value) in _PLAIN
        and not (inputs.bias is not None and inputs.bias.requires_grad)
        and min(inputs.weights_shape, default=0) > 0
    )
    if plain and is_compiling():
        return traced(inputs, *family) if _can_be_an_operator(inputs) else None
    backend = backend_for(inputs.query) if plain else "reference"
    if backend == "reference":
        return None
    return fused(inputs, family.kind, family.parameter, backend)


def _can_be_an_operator(inputs: Inputs) -> bool:
    """Whether a compiled graph may call our kernels: exported programs must run without hopfy."""
    device = inputs.query.device.type
    return inputs.query.dtype in KERNEL_DTYPES.get(device, ()) and not is_exporting()


def _dense(inputs: Inputs, omega: Any) -> tuple[Tensor, Tensor]:
    """The definition: all scores, all weights."""
    shape = inputs.weights_shape
    query, key, value = inputs.query * inputs.scale, inputs.key, inputs.value
    if inputs.repeat > 1:  # the rows of all heads that share a key head stand below each other
        query = _folded(query, inputs.repeat)
    scores = query @ key.transpose(-2, -1)
    if inputs.repeat > 1:
        scores = scores.reshape(shape)
    if inputs.bias is not None:
        scores = scores + inputs.bias
    mask = inputs.full_mask()
    weights = _clipped(omega, inputs, scores, mask)(scores, mask)
    dropped = weights
    if inputs.dropout:
        dropped = torch.nn.functional.dropout(weights, inputs.dropout)
    if inputs.repeat > 1:
        output = _folded(dropped, inputs.repeat) @ value
        return output.reshape(*shape[:-1], output.shape[-1]), weights
    return dropped @ value, weights


def _folded(x: Tensor, repeat: int) -> Tensor:
    """(..., heads * repeat, M, D) as (..., heads, repeat * M, D)."""
    *lead, heads, rows, size = x.shape
    return x.reshape(*lead, heads // repeat, repeat * rows, size)


def _clipped(omega: Any, inputs: Inputs, scores: Tensor, mask: Tensor | None) -> Any:
    """The map where a row may have fewer visible keys than it selects."""
    clip = getattr(omega, "clip", None)  # a map need not be an Omega
    if clip is None:
        return omega
    if inputs.bias is not None:
        visible = scores.detach() > -torch.inf
        mask = visible if mask is None else visible & mask
    if mask is None:
        return clip(scores.shape[-1])
    return clip(mask.sum(-1, keepdim=True).expand(*scores.shape[:-1], 1))
