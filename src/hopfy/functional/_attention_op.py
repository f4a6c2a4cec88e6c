"""The attention kernels as operators of torch, which `torch.compile` keeps as they are.

A compiled graph cannot hold what the forward pass found, so the backward operator computes it again:
memory stays proportional to the number of queries, at the price of one more forward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

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
    "Tensor? bias, Tensor? bias_of, Tensor? seed, int? causal, int period, str kind, float scale, "
    "float dropout"
)
_own_op = partial(torch.library.custom_op, mutates_args=())


@_own_op("hopfy::attention", schema=f"({_INPUTS}) -> Tensor")
def attention_op(
    query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, *rest: Any
) -> Tensor:
    """Output (G, R, E) of queries (G, R, D); arguments as in `hopfy._kernels.attention`."""
    how = _how(*rest)
    q, k, v = (x.contiguous() for x in (query, key, value))
    found = how.forward(q, k, v, parameter)
    return how.dense(q, k, v, parameter) if found is None else found[0]


@attention_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[2])


class _How(NamedTuple):
    """What an operator is told beside its inputs."""

    visible: kernel.Visible
    kind: str
    scale: float
    dropout: float
    seed: int | None  # of what dropout draws

    def forward(self, q: Tensor, k: Tensor, v: Tensor, parameter: Tensor) -> Any:
        """The kernels' output and state, or None where they cannot run."""
        family = kernel.Family(self.kind, parameter)
        return kernel.forward(
            q, k, v, self.visible, family, self.scale, self.dropout, seed=self.seed
        )

    def dense(self, q: Tensor, k: Tensor, v: Tensor, parameter: Tensor) -> Tensor:
        """The same output by way of all weights."""
        weights = dense_weights(q, k, parameter, self.visible, self.kind, self.scale)
        if self.dropout and self.seed is not None:
            chance = torch.full_like(weights, 1 - self.dropout).detach()
            generator = torch.Generator(weights.device).manual_seed(self.seed)
            drawn = torch.bernoulli(chance, generator=generator)
            weights = weights * (drawn / (1 - self.dropout) if self.dropout < 1 else drawn)
        return weights @ v


def _how(
    mask: Tensor | None,
    mask_of: Tensor | None,
    bias: Tensor | None,
    bias_of: Tensor | None,
    seed: Tensor | None,
    causal: int | None,
    period: int,
    kind: str,
    scale: float,
    dropout: float,
) -> _How:
    visible = kernel.Visible(period, mask, mask_of, bias, bias_of, causal)
    return _How(visible, kind, scale, dropout, None if seed is None else int(seed))


@_own_op(
    "hopfy::attention_backward",
    schema=f"(Tensor cotangent, {_INPUTS}, bool wanted) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward_op(
    cotangent: Tensor, query: Tensor, key: Tensor, value: Tensor, parameter: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and the parameter (zeros unless it is wanted)."""
    how, wanted = _how(*rest[:-1]), rest[-1]
    q, k, v, outside = (x.contiguous() for x in (query, key, value, cotangent))
    found = how.forward(q, k, v, parameter)
    if found is None:
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in (q, k, v, parameter)]
            output = how.dense(*inputs)
            gradients = torch.autograd.grad(output, inputs, outside)
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
    ctx.save_for_backward(*inputs[:9])
    ctx.rest = inputs[9:]


def _differentiate(ctx: Any, cotangent: Tensor) -> Any:
    wanted = ctx.needs_input_grad[3]
    q, k, v, own = _backward_op(cotangent, *ctx.saved_tensors, *ctx.rest, wanted)
    return q, k, v, own if wanted else None, *(None,) * 10


attention_op.register_autograd(_differentiate, setup_context=_keep)
