"""The attention kernels as operators of torch, which `torch.compile` keeps as they are.

A compiled graph cannot hold what the forward pass found, so the backward operator computes it again:
memory stays proportional to the number of queries, at the price of one more forward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hopfy._kernels import attention as kernel
from hopfy.functional._entmax import entmax
from hopfy.functional._ksubsets import ksubsets
from hopfy.functional._normmax import normmax

__all__ = ["attention_op", "dense_weights"]

_MAPS: dict[str, Any] = {"entmax": entmax, "normmax": normmax, "ksubsets": ksubsets}


def dense_weights(
    query: Tensor, key: Tensor, parameter: Tensor, visible: kernel.Visible, kind: str, scale: float
) -> Tensor:
    """All weights (G, R, N), by torch operations that can be differentiated any number of times."""
    groups, rows, _ = query.shape
    scores = (query * scale) @ key.mT
    bias = visible.dense_bias(groups, rows)
    scores = scores if bias is None else scores + bias
    mask = visible.dense_mask(scores)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    number = parameter[..., None] if parameter.ndim else parameter
    if kind == "ksubsets":
        number = torch.minimum(number, (scores > -torch.inf).sum(-1, keepdim=True))
    found: Tensor = _MAPS[kind](scores, number)
    return found


_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor parameter, Tensor? mask, Tensor? mask_of, "
    "Tensor? bias, Tensor? bias_of, int? causal, int period, str kind, float scale"
)
_own_op = partial(torch.library.custom_op, mutates_args=())


@_own_op("hopfy::attention", schema=f"({_INPUTS}) -> Tensor")
def attention_op(
    query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, *rest: Any
) -> Tensor:
    """Output (G, R, E) of queries (G, R, D); arguments as in `hopfy._kernels.attention`."""
    visible, kind, scale = _how(*rest)
    q, k, v = (x.contiguous() for x in (query, key, value))
    found = kernel.forward(q, k, v, visible, kernel.Family(kind, parameter), scale)
    if found is None:
        return dense_weights(q, k, parameter, visible, kind, scale) @ v
    return found[0]


@attention_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[2])


def _how(
    mask: Tensor | None,
    mask_of: Tensor | None,
    bias: Tensor | None,
    bias_of: Tensor | None,
    causal: int | None,
    period: int,
    kind: str,
    scale: float,
) -> tuple[kernel.Visible, str, float]:
    """What is visible to a query, the kind of the map and the scale of the scores."""
    return kernel.Visible(period, mask, mask_of, bias, bias_of, causal), kind, scale


@_own_op(
    "hopfy::attention_backward",
    schema=f"(Tensor cotangent, {_INPUTS}, bool wanted) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward_op(
    cotangent: Tensor, query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and the parameter (zeros unless it is wanted)."""
    *how, wanted = rest
    visible, kind, scale = _how(*how)
    q, k, v, outside = (x.contiguous() for x in (query, key, value, cotangent))
    found = kernel.forward(q, k, v, visible, kernel.Family(kind, parameter), scale)
    if found is None:
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in (q, k, v, parameter)]
            weights = dense_weights(inputs[0], inputs[1], inputs[3], visible, kind, scale)
            gradients = torch.autograd.grad(weights @ inputs[2], inputs, outside)
        return gradients[0], gradients[1], gradients[2], gradients[3]
    *three, along = kernel.backward(found[1], q, k, v, outside, wanted)
    if along is None:
        return three[0], three[1], three[2], torch.zeros_like(parameter)
    own = along.sum_to_size(parameter.shape).to(parameter.dtype)
    return three[0], three[1], three[2], own.clone()


@_backward_op.register_fake
def _(
    cotangent: Tensor, query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
    ]
    return found[0], found[1], found[2], torch.empty_like(parameter)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.rest = inputs[8:]


def _differentiate(ctx: Any, cotangent: Tensor) -> Any:
    wanted = ctx.needs_input_grad[3]
    q, k, v, own = _backward_op(cotangent, *ctx.saved_tensors, *ctx.rest, wanted)
    return q, k, v, own if wanted else None, *(None,) * 8


attention_op.register_autograd(_differentiate, setup_context=_keep)
