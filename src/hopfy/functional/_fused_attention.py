"""Attention by ways that never hold all weights: torch's own for softmax, else our kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as fw

from hopfy._checks import values_can_be_read
from hopfy._kernels import attention as kernel
from hopfy._kernels.attention.cpu_blocks import kept_weights
from hopfy.functional._attention_inputs import Inputs
from hopfy.functional._entmax import entmax
from hopfy.functional._ksubsets import ksubsets
from hopfy.functional._normmax import normmax

__all__ = ["fused", "sdpa"]


# --- softmax --------------------------------------------------------------------------------------


def sdpa(inputs: Inputs) -> Tensor:
    """Softmax attention by torch, with zeros for queries that may attend to nothing."""
    query, key, value = inputs.heads_repeated()
    mask, something = _safe_mask(inputs)
    causal = inputs.causal == 0 and mask is None
    arguments = (mask, inputs.dropout, causal, inputs.scale)
    if _plain(query) and torch.is_grad_enabled() and not inputs.dropout:
        tracked = [x for x in (query, key, value) if x.requires_grad]
        if tracked and (mask is None or not mask.requires_grad):
            output: Tensor = _Twice.apply(query, key, value, *arguments)  # type: ignore[no-untyped-call]
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
    return values_can_be_read(x) and fw._current_level < 0


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


class _Twice(torch.autograd.Function):
    """Torch's attention, with a second derivative: its own backward has none."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        inner = [x.detach().requires_grad_(x.requires_grad) for x in (q, k, v)]
        with torch.enable_grad():
            output = _torch_sdpa(inner[0], inner[1], inner[2], *arguments)
        ctx.save_for_backward(q, k, v)
        ctx.inner, ctx.output, ctx.arguments = inner, output, arguments
        return output.detach()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        needed = ctx.needs_input_grad[:3]
        again = torch.is_grad_enabled()
        if again:  # someone differentiates twice: torch's plain operations record the way
            inputs = ctx.saved_tensors
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                output = _torch_sdpa(*inputs, *ctx.arguments)
        else:
            inputs, output = ctx.inner, ctx.output
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
        found = iter(
            torch.autograd.grad(output, wanted, cotangent, retain_graph=True, create_graph=again)
        )
        return *(next(found) if need else None for need in needed), None, None, None, None


# --- sparse maps ----------------------------------------------------------------------------------


def fused(inputs: Inputs, kind: str, parameter: float | Tensor) -> Tensor | None:
    """Attention by the kernels, or None where they cannot run."""
    *lead, rows, keys = inputs.weights_shape
    repeat = inputs.repeat
    shared = (*lead[:-1], lead[-1] // repeat) if repeat > 1 else tuple(lead)
    query = inputs.query.expand(*lead, -1, -1).reshape(-1, repeat * rows, inputs.query.shape[-1])
    key, value = (
        x.expand(*shared, -1, -1).reshape(-1, keys, x.shape[-1]) for x in (inputs.key, inputs.value)
    )
    visible = kernel.Visible(rows, *_places(inputs.mask, lead), *_places(inputs.bias, lead))
    if inputs.causal is not None:
        visible = visible._replace(causal=inputs.causal)
    number = _beside_rows(parameter, (*lead, rows), query.shape[:2])
    output: Tensor | None = _Fused.apply(  # type: ignore[no-untyped-call]
        query, key, value, number, visible, kind, inputs.scale, inputs.dropout
    )
    return None if output is None else output.view(*lead, rows, output.shape[-1])


def _beside_rows(parameter: float | Tensor, rows: tuple[int, ...], flat: tuple[int, ...]) -> Tensor:
    """The map's parameter, 0-d or one for each row."""
    if not isinstance(parameter, Tensor):
        return torch.tensor(float(parameter), dtype=torch.float64)
    if parameter.ndim == 0:
        return parameter
    if parameter.ndim > len(rows):
        parameter = parameter.squeeze(-1)
    try:
        return parameter.expand(rows).reshape(flat)
    except RuntimeError:
        raise ValueError(
            f"expected the map's parameter to broadcast over the rows {rows} (batch, heads, "
            f"queries), got shape {tuple(parameter.shape)}; one per head has shape (heads, 1)."
        ) from None


def _places(mask: Tensor | None, lead: list[int]) -> tuple[Tensor | None, Tensor | None]:
    """A mask that broadcasts to (*lead, M, N) as distinct masks (K, M or 1, N), and who has which."""
    if mask is None:
        return None, None
    mask = mask.detach().reshape((1,) * (len(lead) + 2 - mask.ndim) + tuple(mask.shape))
    own = mask.shape[:-2]
    distinct = mask.reshape(-1, *mask.shape[-2:]).contiguous()
    which = torch.arange(own.numel()).reshape(own).expand(lead).reshape(-1)
    return distinct, which


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        parameter: Tensor,
        visible: kernel.Visible,
        kind: str,
        scale: float,
        dropout: float,
    ) -> Tensor | None:
        q, k, v = (x.detach().contiguous() for x in (query, key, value))
        family = kernel.Family(kind, parameter.detach())
        found = kernel.forward(q, k, v, visible, family, scale, dropout)
        if found is None:
            return None
        output, ctx.state = found
        ctx.save_for_backward(query, key, value, parameter)
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        query, key, value, parameter = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3]
        if torch.is_grad_enabled():  # someone differentiates twice: let torch record the way
            return *_recorded(ctx, query, key, value, parameter, cotangent), *(None,) * 4
        q, k, v = (x.detach().contiguous() for x in (query, key, value))
        *gradients, along = kernel.backward(ctx.state, q, k, v, cotangent.contiguous(), wanted)
        if along is not None:
            along = along.sum_to_size(parameter.shape).to(parameter.dtype)
        return *gradients, along, *(None,) * 4


def _recorded(ctx: Any, *inputs_and_cotangent: Tensor) -> list[Tensor | None]:
    """The gradients of the dense path, as torch operations that can be differentiated again."""
    *inputs, cotangent = inputs_and_cotangent
    query, key, value, parameter = inputs
    state = ctx.state
    groups, rows, _ = query.shape
    scores = (query * state.scale) @ key.mT
    bias = state.visible.dense_bias(groups, rows)
    scores = scores if bias is None else scores + bias
    mask = state.visible.dense_mask(groups, rows, key.shape[1])
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    number = parameter[..., None] if parameter.ndim else parameter
    if state.family.kind == "ksubsets":
        number = torch.minimum(number, (scores > -torch.inf).sum(-1, keepdim=True))
    weights = _MAPS[state.family.kind](scores, number)
    if state.dropout:
        weights = weights * kept_weights(state, weights.shape, weights.dtype)
    output = weights @ value
    wanted = [x for x, need in zip(inputs, ctx.needs_input_grad[:4], strict=True) if need]
    found = iter(torch.autograd.grad(output, wanted, cotangent, create_graph=True))
    return [next(found) if need else None for need in ctx.needs_input_grad[:4]]


_MAPS: dict[str, Any] = {"entmax": entmax, "normmax": normmax, "ksubsets": ksubsets}
