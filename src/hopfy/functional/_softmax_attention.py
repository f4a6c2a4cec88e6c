"""Attention with softmax, by torch's own kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopfy._runtime.dispatch import (
    forward_mode_is_active,
    records_gradients,
    values_can_be_read,
)
from hopfy._runtime.precision import outside_autocast
from hopfy.functional._attention_inputs import Inputs, fit_at_a_glance

__all__ = ["sdpa", "sdpa_serves"]


def sdpa_serves(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch's own call is ours, without a mask: no second derivative, no wider dtype."""
    return (
        fit_at_a_glance(query, key, value)
        and query.dtype in (torch.float32, torch.float64)
        and not records_gradients(query, key, value)
        and not forward_mode_is_active()
        and not torch.is_autocast_enabled(query.device.type)
        and key.shape[-2] > 0
    )


def sdpa(inputs: Inputs) -> Tensor:
    """Softmax attention by torch, with zeros for queries that may attend to nothing."""
    query, key, value = inputs.heads_repeated()
    mask, something = _safe_mask(inputs)
    causal = inputs.causal == 0 and mask is None
    arguments = (mask, inputs.dropout, causal, inputs.scale)
    if (
        torch.is_grad_enabled()
        and (query.requires_grad or key.requires_grad or value.requires_grad)
        and not (mask is not None and mask.requires_grad)
        and not inputs.dropout  # torch's plain operations, which can be differentiated twice
        and _plain(query)
    ):
        recorded: Any = _Flash if mask is None and _takes_flash(query, key, value) else _Twice
        output: Tensor = recorded.apply(query, key, value, *arguments)
    elif forward_mode_is_active():
        output = _by_plain_operations(query, key, value, *arguments)
    else:
        output = _torch_sdpa(query, key, value, *arguments)
    return output if something is None else torch.where(something, output, 0.0)


def _torch_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float
) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


def _by_plain_operations(*arguments: Any) -> Tensor:
    """The same where fused kernels have no derivative: forward mode, second derivatives."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return _torch_sdpa(*arguments)


def _plain(x: Tensor) -> bool:
    return values_can_be_read(x) and not forward_mode_is_active()


def _safe_mask(inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
    """One mask for torch, and where a query may attend to something (None: everywhere).

    A row with nothing to attend to sees all keys instead: its output is replaced afterward, which
    also keeps NaN out of its gradients.
    """
    causal_only = inputs.mask is None and inputs.bias is None
    if causal_only and inputs.causal in (None, 0):
        return None, None
    mask = inputs.full_mask()
    bias = inputs.bias
    allowed = mask
    if bias is not None:
        there = bias.detach() > -torch.inf
        allowed = there if mask is None else there & mask
    assert allowed is not None
    something: Tensor | None = allowed.any(-1, keepdim=True)
    assert something is not None
    if values_can_be_read(something) and bool(something.all()):
        something = None
    else:
        allowed = allowed | ~something
    if bias is None:
        return allowed, something
    if something is not None:
        bias = torch.where(something, bias, 0.0)
    return (bias if mask is None else bias.masked_fill(~allowed, -torch.inf)), something


_FLASH = torch.nn.attention.SDPBackend.FLASH_ATTENTION.value
_forward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_backward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def _takes_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch computes this on the CPU by its flash kernel, which we can call, too."""
    if q.device.type != "cpu" or _forward is None or _backward is None:
        return False
    return bool(torch._fused_sdp_choice(q, k, v) == _FLASH)


def _second(ctx: Any, cotangent: Tensor, *inputs: Any) -> list[Tensor | None]:
    """The gradients by plain operations, which can be differentiated again."""
    output = _by_plain_operations(*inputs, *ctx.arguments)
    return _gradients(ctx, output, inputs, cotangent, create_graph=True)


def _gradients(
    ctx: Any, output: Tensor, inputs: Any, cotangent: Tensor, **options: bool
) -> list[Tensor | None]:
    needed = ctx.needs_input_grad[:3]
    wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
    found = iter(torch.autograd.grad(output, wanted, cotangent, **options))
    return [next(found) if need else None for need in needed]


class _Flash(torch.autograd.Function):
    """Torch's flash kernel on the CPU, without a mask, with a second derivative."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        _, dropout, causal, scale = ctx.arguments = arguments
        output, sums = _forward(q, k, v, dropout, causal, attn_mask=None, scale=scale)  # type: ignore[misc]
        ctx.save_for_backward(q, k, v, output, sums)
        found: Tensor = output
        return found

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        nothing = (None,) * len(ctx.arguments)
        saved = ctx.saved_tensors
        with outside_autocast(cotangent):
            if torch.is_grad_enabled():
                return *_second(ctx, cotangent, *saved[:3]), *nothing
            _, dropout, causal, scale = ctx.arguments
            found = _backward(cotangent, *saved, dropout, causal, attn_mask=None, scale=scale)  # type: ignore[misc]
        return *found, *nothing


class _Twice(torch.autograd.Function):
    """Torch's attention, which has no second derivative where it takes a fused kernel, with one.

    The first derivative is torch's own, of a graph that is kept inside.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        with torch.enable_grad():
            needed = ctx.needs_input_grad[:3]
            inner: Any = [
                x.detach().requires_grad_(n) for x, n in zip((q, k, v), needed, strict=True)
            ]
            output = _torch_sdpa(*inner, *arguments)
        ctx.save_for_backward(q, k, v)
        ctx.inner, ctx.output, ctx.arguments = inner, output, arguments
        return output.detach()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        nothing = (None,) * len(ctx.arguments)
        with outside_autocast(cotangent):
            if torch.is_grad_enabled():
                return *_second(ctx, cotangent, *ctx.saved_tensors), *nothing
            return *_gradients(ctx, ctx.output, ctx.inner, cotangent, retain_graph=True), *nothing
