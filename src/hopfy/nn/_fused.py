"""When an association can run without holding its weights, and the autograd around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hopfy._kernels import attention as kernel
from hopfy._runtime.compilation import runs_compiled
from hopfy._runtime.dispatch import forward_mode_is_active, values_can_be_read
from hopfy.omega import Norm, Omega, Tsallis

__all__ = ["retrieve_sparsely"]

# Fewer scores than this and the plain path is as fast.
_WORTH_IT = 1 << 14


def retrieve_sparsely(
    omega: Omega | nn.Module,
    queries: Tensor,
    memories: Tensor,
    values: Tensor,
    mask: Tensor | None,
    dropout: float = 0.0,
) -> Tensor | None:
    """``omega(queries @ memories.mT, mask) @ values`` on the support only; None if it cannot be.

    The shapes are (..., heads, M, D), (..., heads, N, D), (..., heads, N, E); the answer has the
    shape (..., heads, M, E).
    """
    family = _family(omega)
    if family is None or not _can_run(queries, memories, values, mask):
        return None
    batch = tuple(queries.shape[:-2])
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (queries, memories, values)]
    forbidden = None if mask is None else _flat_mask(~mask, batch)
    output: Tensor | None = _SparseRetrieval.apply(*flat, forbidden, family, dropout)  # type: ignore[no-untyped-call]
    return None if output is None else output.view(*batch, *output.shape[-2:])


def _family(omega: Omega | nn.Module) -> kernel.Family | None:
    alpha = getattr(omega, "alpha", None)
    if isinstance(alpha, Tensor) or alpha is None:
        return None
    if type(omega) is Tsallis and 1 < alpha <= 2:
        return kernel.entmax_family(float(alpha))
    if type(omega) is Norm and alpha < float("inf"):
        return kernel.normmax_family(float(alpha))
    return None


def _can_run(queries: Tensor, memories: Tensor, values: Tensor, mask: Tensor | None) -> bool:
    same = queries.dtype == memories.dtype == values.dtype
    return (
        values_can_be_read(queries)
        and not forward_mode_is_active()
        and same
        and runs_compiled(queries)
        and queries.shape[:-2] == memories.shape[:-2] == values.shape[:-2]
        and queries.shape[:-1].numel() * memories.shape[-2] >= _WORTH_IT
        and (mask is None or mask.ndim <= queries.ndim)
    )


def _flat_mask(forbidden: Tensor, batch: tuple[int, ...]) -> Tensor:
    """A mask that broadcasts over (*batch, M, N) as one over (groups, M, N)."""
    missing = len(batch) + 2 - forbidden.ndim
    forbidden = forbidden.reshape(*(1,) * missing, *forbidden.shape)
    if all(size == 1 for size in forbidden.shape[:-2]):
        return forbidden.reshape(1, *forbidden.shape[-2:])
    forbidden = forbidden.expand(*batch, *forbidden.shape[-2:])
    return forbidden.reshape(-1, *forbidden.shape[-2:])


class _SparseRetrieval(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        memories: Tensor,
        values: Tensor,
        forbidden: Tensor | None,
        family: kernel.Family,
        dropout: float,
    ) -> Tensor | None:
        q, x, v = (part.detach().contiguous() for part in (queries, memories, values))
        found = kernel.forward(q, x, v, forbidden, family, dropout)
        if found is None:
            return None
        output, support = found
        ctx.save_for_backward(queries, memories, values, *support)
        ctx.forbidden, ctx.family = forbidden, family
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        queries, memories, values, *support = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates twice: let torch record the way
            return *_recorded(ctx, queries, memories, values, cotangent), None, None, None
        q, x, v = (part.detach().contiguous() for part in (queries, memories, values))
        gradients = kernel.backward(
            kernel.Support(*support), q, x, v, cotangent.contiguous(), ctx.family
        )
        return *gradients, None, None, None


def _recorded(ctx: Any, *inputs_and_cotangent: Tensor) -> tuple[Tensor, ...]:
    *inputs, cotangent = inputs_and_cotangent
    family = ctx.family
    omega = Norm(family.alpha) if family.norm else Tsallis(family.alpha)
    queries, memories, values = inputs
    allowed = None if ctx.forbidden is None else ~ctx.forbidden
    weights = omega(queries @ memories.mT, allowed)
    support = kernel.Support(*ctx.saved_tensors[3:])
    if support.kept.numel():
        weights = weights * _spread(support, weights)
    output = weights @ values
    return torch.autograd.grad(output, inputs, cotangent, create_graph=True)


def _spread(support: kernel.Support, weights: Tensor) -> Tensor:
    """What dropout multiplied each weight with, in the shape of all weights."""
    rows = support.edges.diff()
    row = torch.arange(rows.numel()).repeat_interleave(rows)
    factors = torch.zeros(rows.numel(), weights.shape[-1], dtype=weights.dtype)
    factors[row, support.columns.long()] = support.kept
    return factors.view(weights.shape)
