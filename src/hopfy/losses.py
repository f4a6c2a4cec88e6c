"""Fenchel-Young losses as modules."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hopfy._checks import as_dim, as_scores
from hopfy._runtime.dispatch import values_can_be_read
from hopfy.omega import Omega, omega_from

__all__ = ["FenchelYoungLoss"]

Reduction = Literal["mean", "sum", "none"]


class FenchelYoungLoss(nn.Module):
    r"""The loss :math:`L_\Omega(\theta, y) = \Omega(y) + \Omega^*(\theta) - \theta^\top y` (Eq. 6).

    It is used like `torch.nn.CrossEntropyLoss`, which it equals for `hopfy.Shannon` (up to the entropy
    of probability targets). With a sparse regulariser it has a margin: well separated scores have
    loss and gradient exactly zero.

    Args:
        omega: a regulariser or its name, such as ``"1.5-entmax"``.
        reduction: ``"mean"`` over the targets that are not ignored, ``"sum"`` or ``"none"``.
        ignore_index: a class index whose rows count for nothing.
        dim: the dimension of the classes. `CrossEntropyLoss` has them second: for images, pass 1.

    Shape:
        scores (..., N, ...); target either class indices, the same shape without ``dim``, or weights
        of the same shape as the scores.

    >>> import torch, hopfy
    >>> loss = hopfy.FenchelYoungLoss("sparsemax")
    >>> loss(torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([0]))  # leads by the margin, 1
    tensor(0.)
    >>> loss(torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([1]))
    tensor(1.5000)
    """

    def __init__(
        self,
        omega: Omega | str,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        dim: int = -1,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"expected reduction 'mean', 'sum' or 'none', got {reduction!r}.")
        self.omega = omega_from(omega)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.dim = dim

    def extra_repr(self) -> str:
        return f"{self.omega!r}, reduction={self.reduction!r}, dim={self.dim}"

    def forward(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of ``scores`` (True in ``mask`` = class may be selected) against ``target``."""
        dim = as_dim(self.dim, as_scores(scores).ndim)
        kept = None
        if not target.is_floating_point():
            kept = target != self.ignore_index
            target = _one_hot(torch.where(kept, target, 0), scores, dim)
        losses = self.omega.loss(scores, target, mask, dim=dim)
        if kept is not None:
            losses = torch.where(kept, losses, 0.0)
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        count = losses.numel() if kept is None else kept.sum().clamp_min(1)
        return losses.sum() / count


def _one_hot(target: Tensor, scores: Tensor, dim: int) -> Tensor:
    expected = scores.shape[:dim] + scores.shape[dim + 1 :]
    if target.dtype is torch.bool or target.shape != expected:
        raise ValueError(
            f"expected class indices of shape {tuple(expected)} or weights of shape "
            f"{tuple(scores.shape)}, got {target.dtype} of shape {tuple(target.shape)}."
        )
    size = scores.shape[dim]
    if values_can_be_read(target) and target.numel():
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= size:
            wrong = low if low < 0 else high
            raise IndexError(f"expected class indices in [0, {size - 1}], got {wrong}.")
    zeros = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
    return zeros.scatter(dim, target.long().unsqueeze(dim), 1.0)
