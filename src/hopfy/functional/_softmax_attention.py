"""Attention with softmax, by torch's own kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hopfy._runtime.dispatch import (
    current_autograd_node,
    forward_mode_is_active,
    is_compiling,
    records_gradients,
    transforms_are_active,
    transforms_differentiate,
    values_can_be_read,
)
from hopfy._runtime.precision import outside_autocast
from hopfy._runtime.second_derivatives import recorded_gradients
from hopfy.functional._attention_inputs import Inputs

__all__ = ["sdpa", "torch_attention"]


def sdpa(inputs: Inputs) -> Tensor:
    """Softmax attention by torch, with zeros for queries that may attend to nothing."""
    folded = inputs.heads_as_queries()
    query, key, value = folded.heads_repeated()
    mask, something = _safe_mask(folded)
    causal = inputs.causal == 0 and mask is None
    output = torch_attention(query, key, value, mask, inputs.dropout, causal, inputs.scale)
    if something is not None:
        output = torch.where(something, output, 0.0)
    if folded is inputs:
        return output
    return output.reshape(*output.shape[:-3], *inputs.query.shape[-3:-1], output.shape[-1])


def torch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Torch's own attention, with the derivatives that its fused kernels lack.

    These are those in forward mode, and second ones. The gradients keep their digits if
    `torch.autocast` is on in the backward pass. With a scale of 0 a fused kernel gives NaN where
    keys are hidden (it multiplies -inf by 0); plain operations do not.
    """
    if scale == 0 or forward_mode_is_active() or transforms_differentiate():
        return _by_plain_operations(query, key, value, mask, dropout, causal, scale)
    if not _is_recorded(query, key, value) or dropout or (mask is not None and mask.requires_grad):
        return _torch_sdpa(query, key, value, mask, dropout, causal, scale=scale)
    if torch._fused_sdp_choice(query, key, value, mask, 0.0, causal, scale=scale) == _PLAIN:
        apart: Any = _OutsideAutocast
        output: Tensor = apart.apply(query, key, value, mask, 0.0, causal, scale)
        return output
    output = _torch_sdpa(query, key, value, mask, 0.0, causal, scale=scale)
    node = _fused_node(output)
    if node is not None:
        node.register_hook(partial(_recorded, mask))
    return output


_PLAIN = torch.nn.attention.SDPBackend.MATH.value
_torch_sdpa = torch.nn.functional.scaled_dot_product_attention


def _by_plain_operations(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """The same where fused kernels have no derivative."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return _torch_sdpa(query, key, value, mask, dropout, causal, scale=scale)


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


def _is_recorded(*tensors: Tensor) -> bool:
    """Whether gradients are recorded, and not by a compiled graph or a transform."""
    return records_gradients(*tensors) and not (is_compiling() or transforms_are_active())


def _fused_node(output: Tensor) -> Any:
    """The node of torch's graph that stands for a fused kernel; None if it is not one of those known.

    Then first derivatives are torch's own, and second ones are its error.
    """
    node: Any = output.grad_fn
    behind = [each for each, _ in node.next_functions]  # where the kernel has padded the features
    return next((each for each in (node, *behind) if hasattr(each, "_saved_query")), None)


def _recorded(mask: Tensor | None, gradients: Any, cotangents: Any) -> Any:
    """In the place of a fused kernel's gradients: the same, recorded, if they are to be recorded."""
    if not torch.is_grad_enabled():
        return None
    node: Any = current_autograd_node()
    attend = partial(_attend, (mask, 0.0, node._saved_is_causal, node._saved_scale))
    inputs = node._saved_query, node._saved_key, node._saved_value
    needed = [x is not None for x in gradients[:3]]
    with outside_autocast(cotangents[0]):
        return *recorded_gradients(attend, inputs, cotangents[0], needed), *gradients[3:]


class _OutsideAutocast(torch.autograd.Function):
    """Attention by torch's plain operations, in a graph of its own that is kept inside."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        with torch.enable_grad():
            needed = ctx.needs_input_grad[:3]
            inner: Any = [
                x.detach().requires_grad_(n) for x, n in zip((q, k, v), needed, strict=True)
            ]
            output = _torch_sdpa(*inner, *arguments[:-1], scale=arguments[-1])  # type: ignore[misc]
        ctx.save_for_backward(q, k, v)
        ctx.inner, ctx.output, ctx.arguments = inner, output, arguments
        return output.detach()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        needed, nothing = ctx.needs_input_grad[:3], (None,) * len(ctx.arguments)
        with outside_autocast(cotangent):
            if torch.is_grad_enabled():
                attend = partial(_attend, ctx.arguments)
                return *recorded_gradients(attend, ctx.saved_tensors, cotangent, needed), *nothing
            wanted = [x for x in ctx.inner if x.requires_grad]
            found = iter(torch.autograd.grad(ctx.output, wanted, cotangent, retain_graph=True))
            return *(next(found) if need else None for need in needed), *nothing


def _attend(arguments: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _by_plain_operations(query, key, value, *arguments)
