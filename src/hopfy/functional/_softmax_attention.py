"""Attention with softmax, by torch's own kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopfy._runtime.dispatch import forward_mode_is_active, values_can_be_read
from hopfy.functional._attention_inputs import Inputs

__all__ = ["sdpa"]

_FLASH = 1  # torch's number of the kernel that never holds all weights


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
        and _plain(query)
        and query.ndim == 4
        and _flash_will_run(query, key, value, *arguments)
    ):
        if mask is not None and mask.dtype is torch.bool:  # the kernel itself knows only numbers
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        rest = arguments[1:]
        output: Tensor = _Twice.apply(query, key, value, mask, *rest)  # type: ignore[no-untyped-call]
        return output if something is None else torch.where(something, output, 0.0)
    output = _torch_sdpa(query, key, value, *arguments)
    return output if something is None else torch.where(something, output, 0.0)


def _torch_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float
) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


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


def _flash_will_run(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> bool:
    """Whether torch would take its flash kernel for the CPU, whose gradient has none of its own."""
    mask, dropout, causal, scale = arguments
    choice = torch._fused_sdp_choice(q, k, v, mask, dropout, causal, scale=scale)
    return bool(choice == _FLASH)


class _Twice(torch.autograd.Function):
    """Torch's flash attention, with a second derivative."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        mask, dropout, causal, scale = arguments
        output: Tensor
        output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, dropout, causal, attn_mask=mask, scale=scale
        )
        ctx.save_for_backward(q, k, v, output, sums)
        ctx.arguments = arguments
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        q, k, v, output, sums = ctx.saved_tensors
        mask, dropout, causal, scale = ctx.arguments
        if not torch.is_grad_enabled():
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                cotangent, q, k, v, output, sums, dropout, causal, attn_mask=mask, scale=scale
            )
            return *found, None, None, None, None
        # Someone differentiates twice: torch's plain operations record the way.
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            output = _torch_sdpa(q, k, v, *ctx.arguments)
        needed = ctx.needs_input_grad[:3]
        wanted = [x for x, need in zip((q, k, v), needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(output, wanted, cotangent, create_graph=True))
        return *(next(gradients) if need else None for need in needed), None, None, None, None
