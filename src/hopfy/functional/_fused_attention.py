"""Attention with sparse maps by kernels that never hold all weights."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._checks import constant
from hopfy._kernels import attention as kernel
from hopfy._runtime.dispatch import is_batched, is_compiling
from hopfy._runtime.second_derivatives import recorded_gradients
from hopfy.functional._attention_inputs import Inputs
from hopfy.functional._attention_op import attention_op, dense_weights

__all__ = ["fused", "traced"]


# --- sparse maps ----------------------------------------------------------------------------------


def fused(inputs: Inputs, kind: str, parameter: float | Tensor, backend: str) -> Tensor | None:
    """Attention by the kernels, or None where they cannot run."""
    arguments = _arguments(inputs, kind, parameter, backend)
    if torch.is_grad_enabled() and any(x.requires_grad for x in arguments[:4]):
        recorded: Tensor | None = _Fused.apply(*arguments)  # type: ignore[no-untyped-call]
        return recorded
    found = _forward(*arguments)
    return None if found is None else found[0]


def traced(inputs: Inputs, kind: str, parameter: float | Tensor) -> Tensor:
    """The same as one operator in a compiled graph."""
    query, key, value, number, call = _arguments(inputs, kind, parameter, "cpu")
    visible = call.visible
    # Drawn in the graph, so that the backward pass drops the same weights.
    seed = torch.randint(1 << 62, (), device="cpu") if inputs.dropout else None
    output: Tensor = attention_op(
        *call.grouped(query, key, value),
        number,
        visible.mask,
        visible.mask_of,
        visible.bias,
        visible.bias_of,
        seed,
        visible.causal,
        visible.period,
        kind,
        inputs.scale,
        inputs.dropout,
    )
    return output.view(*query.shape[:-1], output.shape[-1])


def _arguments(
    inputs: Inputs, kind: str, parameter: float | Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, _Call]:
    """Queries, keys and values with all their leading sizes, the parameter, and the rest."""
    *lead, rows, keys = inputs.weights_shape
    repeat = inputs.repeat
    shared = (*lead[:-1], lead[-1] // repeat) if repeat > 1 else tuple(lead)
    query, key, value = inputs.query, inputs.key, inputs.value
    if query.shape[:-2] != tuple(lead):
        query = query.expand(*lead, -1, -1)
    if not key.shape[:-2] == value.shape[:-2] == shared:
        key, value = key.expand(*shared, -1, -1), value.expand(*shared, -1, -1)
    visible = kernel.Visible(rows, causal=inputs.causal)
    if inputs.mask is not None or inputs.bias is not None:
        places = *_places(inputs.mask, lead), *_places(inputs.bias, lead)
        visible = kernel.Visible(rows, *places, inputs.causal)
    flat = (math.prod(shared), repeat * rows)
    number = _beside_rows(parameter, query, (*lead, rows), flat)
    call = _Call(visible, kind, inputs.scale, inputs.dropout, flat, keys, backend)
    return query, key, value, number, call


class _Call(NamedTuple):
    """What a call of the kernels is told beside tensors that may require gradients."""

    visible: kernel.Visible
    kind: str
    scale: float
    dropout: float
    flat: tuple[int, int]  # groups, rows of each
    keys: int
    backend: str

    def grouped(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (G, R, D), keys (G, N, D) and values (G, N, E)."""
        groups, rows = self.flat
        q = query.reshape(groups, rows, query.shape[-1])
        k = key.reshape(groups, self.keys, key.shape[-1])
        return q, k, value.reshape(groups, self.keys, value.shape[-1])


def _beside_rows(
    parameter: float | Tensor, query: Tensor, rows: tuple[int, ...], flat: tuple[int, ...]
) -> Tensor:
    """The map's parameter, 0-d or one for each row."""
    if not isinstance(parameter, Tensor):
        if is_compiling():
            return torch.full((), float(parameter), dtype=torch.float64)
        return constant(float(parameter), query)
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
    which = torch.arange(own.numel(), device=mask.device).reshape(own).expand(lead).reshape(-1)
    return distinct, which


def _forward(
    query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, call: _Call
) -> tuple[Tensor, Any] | None:
    """Output, and what the backward pass needs; None where the kernels cannot run."""
    q, k, v = (x.contiguous() for x in call.grouped(query, key, value))
    family = kernel.Family(call.kind, parameter)
    found = kernel.forward(q, k, v, call.visible, family, call.scale, call.dropout, call.backend)
    if found is None:
        return None
    return found[0].view(*query.shape[:-1], found[0].shape[-1]), found[1]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, call: _Call
    ) -> Tensor | None:
        found = _forward(query, key, value, parameter, call)
        if found is None:
            return None
        output, ctx.state = found
        ctx.call = call
        ctx.save_for_backward(query, key, value, parameter)
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        query, key, value, parameter = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3]
        if torch.is_grad_enabled() or is_batched(cotangent):  # plain operations can do both
            return *_recorded(ctx, query, key, value, parameter, cotangent), None
        q, k, v = (x.contiguous() for x in ctx.call.grouped(query, key, value))
        outside = cotangent.reshape(*q.shape[:2], v.shape[2]).contiguous()
        *gradients, along = kernel.backward(ctx.state, q, k, v, outside, wanted)
        in_query, in_key, in_value = gradients
        if along is not None:
            along = along.sum_to_size(parameter.shape).to(parameter.dtype)
        found = in_query.view(query.shape), in_key.view(key.shape), in_value.view(value.shape)
        return *found, along, None


def _recorded(ctx: Any, *inputs_and_cotangent: Tensor) -> list[Tensor | None]:
    """The gradients of the dense path, as torch operations that can be differentiated again."""
    *inputs, cotangent = inputs_and_cotangent
    state = ctx.state

    def attend(query: Tensor, key: Tensor, value: Tensor, parameter: Tensor) -> Tensor:
        q, k, v = ctx.call.grouped(query, key, value)
        weights = dense_weights(q, k, parameter, state.visible, state.family.kind, state.scale)
        if state.dropout:
            weights = weights * kernel.kept_weights(state, weights.shape, weights.dtype)
        output: Tensor = weights @ v
        return output

    return recorded_gradients(attend, inputs, cotangent, ctx.needs_input_grad[:4])
