"""What every regulariser can do, written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from hopfy._checks import as_dim, as_mask, as_scores, as_weights

__all__ = ["Omega"]


class Omega(ABC):
    r"""A convex regulariser :math:`\Omega` with all that the paper derives from it.

    ========================  =====================================================================
    ``omega(scores)``         :math:`\hat y(\theta) = \arg\max_y \theta^\top y - \Omega(y)` (Eq. 3)
    ``omega.value(weights)``  :math:`\Omega(y)`
    ``omega.conjugate(...)``  :math:`\Omega^*(\theta) = \max_y \theta^\top y - \Omega(y)`
    ``omega.loss(...)``       :math:`L(\theta, y) = \Omega(y) + \Omega^*(\theta) - \theta^\top y` (Eq. 6)
    ``omega.margin``          the smallest m of Def. 1; infinite if there is none
    ========================  =====================================================================

    A subclass writes the prediction, the value and the margin; the rest follows.
    """

    @abstractmethod
    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        """Weights that maximise the regularised score along ``dim``."""

    @abstractmethod
    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        """The regulariser at weights in its domain, reduced over ``dim``."""

    @property
    @abstractmethod
    def margin(self) -> float:
        """Scores that lead all others by this much give an exactly one-hot (k-hot) answer."""

    def conjugate(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        r""":math:`\Omega^*(\theta)`, reduced over ``dim``; its gradient is the prediction."""
        scores, dim = _prepare(scores, mask, dim)
        weights = self(scores, dim=dim)
        score = _Envelope.apply(scores, weights, torch.zeros_like(weights), dim)  # type: ignore[no-untyped-call]
        return score - self.value(weights.detach(), dim=dim)  # type: ignore[no-any-return]

    def loss(
        self, scores: Tensor, target: Tensor, mask: Tensor | None = None, *, dim: int = -1
    ) -> Tensor:
        r"""The Fenchel-Young loss :math:`L(\theta, y)`, reduced over ``dim`` (Eq. 6).

        ``target`` holds weights in the domain of the regulariser, shaped like the scores. The loss
        is never negative, zero exactly at the prediction, and its gradient with respect to the
        scores is the prediction minus the target.
        """
        dtype = scores.dtype
        scores, dim = _prepare(scores, mask, dim)
        target = as_weights(target, scores)
        if dtype in (torch.float16, torch.bfloat16):
            scores, target = scores.float(), target.float()
        weights = self(scores, dim=dim)
        # A common shift changes nothing, as both sides carry the same mass, and keeps digits.
        top = scores.detach().amax(dim, keepdim=True) if scores.shape[dim] else scores.detach()
        shifted = scores - torch.where(top.isfinite(), top, 0.0) if top.numel() else scores
        gap = _Envelope.apply(shifted, weights, target, dim)  # type: ignore[no-untyped-call]
        loss = gap + self.value(target, dim=dim) - self.value(weights.detach(), dim=dim)
        # Rounding may go below zero by an ulp: lift the value and leave the gradient alone.
        return (loss + (-loss.detach()).clamp_min(0)).to(dtype)  # type: ignore[no-any-return]


def _prepare(scores: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, int]:
    scores = as_scores(scores)
    if mask is not None:
        scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
    return scores, as_dim(dim, scores.ndim)


class _Envelope(torch.autograd.Function):
    r""":math:`\theta^\top (y - t)` where y maximises the regularised score of theta.

    By the envelope theorem y counts as a constant: the gradient in theta is :math:`y - t`. Keeping y
    attached to the graph makes the next derivative the Jacobian of the prediction.
    """

    @staticmethod
    def forward(scores: Tensor, weights: Tensor, target: Tensor, dim: int) -> Tensor:
        difference = weights - target
        return torch.where(difference == 0, 0.0, scores * difference).sum(dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ARG004
        scores, weights, target, ctx.dim = inputs
        ctx.save_for_backward(scores, weights, target)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        scores, weights, target = ctx.saved_tensors
        cotangent = cotangent.unsqueeze(ctx.dim)
        in_target = None
        if ctx.needs_input_grad[2]:
            in_target = -cotangent * torch.where(scores.isfinite(), scores, 0.0)
        return cotangent * (weights - target), None, in_target, None

    generate_vmap_rule = True
