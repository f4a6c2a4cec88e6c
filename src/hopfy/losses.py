"""Fenchel-Young losses as modules."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hopfy._checks import as_dim, as_scores
from hopfy._facts import register_parameters, with_parameters_of
from hopfy.omega import Omega, omega_from

__all__ = ["FenchelYoungLoss"]

Reduction = Literal["mean", "sum", "none"]


class FenchelYoungLoss(nn.Module):
    r"""The loss :math:`L_\Omega(\theta, y) = \Omega(y) + \Omega^*(\theta) - \theta^\top y` (Eq. 6).

    It is used like `torch.nn.CrossEntropyLoss`, which it equals for `hopfy.Shannon` (up to the entropy
    of probability targets). With a sparse regularizer it has a margin: well separated scores have
    loss and gradient exactly zero.

    Args:
        omega: a regularizer or its name, such as ``"1.5-entmax"``.
        reduction: ``"mean"`` over the problems that are not ignored, ``"sum"`` or ``"none"``.
        ignore_index: an integer in the target that removes what it stands for: a row of class scores,
            a position of a chain, a word of a tree, a row of a matching. A problem of which nothing
            is left has loss 0 and does not count in the mean.
        dim: the dimension of the classes. `CrossEntropyLoss` has them second: for images, pass 1.
        weight: (N,) a weight for each class, for class indices and regularizers of one class per row;
            ``"mean"`` then divides by the sum of the weights, as `CrossEntropyLoss` does.
        label_smoothing: the share of the target that is spread evenly over all N classes.

    Shape:
        scores (..., N, ...), or (..., *event) for structures of several dimensions. The target is
        either weights of the same shape, in the domain of the regularizer, or integers:

        =====================  ====================================================================
        one class per row      class indices, the scores' shape without ``dim``
        k-subsets, sequences   index lists (..., k), or rows of zeros and ones (..., N)
        chains (..., L, S)     the state of each position (..., L)
        trees (..., n, n)      the head of each word (..., n), its own number for the root
        matchings (..., m, n)  the partner of each row (..., m), -1 for none
        =====================  ====================================================================

        The loss is that of each problem, counted once: (B,) for chains (B, L, S).

    >>> import torch, hopfy
    >>> loss = hopfy.FenchelYoungLoss("sparsemax")
    >>> loss(torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([0]))  # leads by the margin, 1
    tensor(0.)
    >>> loss(torch.tensor([[2.0, 0.5, 0.0]]), torch.tensor([1]))
    tensor(1.5000)
    >>> tagger = hopfy.FenchelYoungLoss(hopfy.SparseMAP(hopfy.structures.Chain(0.5)))
    >>> tagger(torch.zeros(2, 3, 4), torch.tensor([[0, 0, 1], [2, 2, -100]])).shape
    torch.Size([])
    """

    def __init__(
        self,
        omega: Omega | str,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        dim: int = -1,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"expected reduction 'mean', 'sum' or 'none', got {reduction!r}.")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"expected label_smoothing in [0, 1], got {label_smoothing!r}.")
        self.omega = omega_from(omega)
        register_parameters(self, "omega", self.omega)
        if (weight is not None or label_smoothing) and self.omega.largest_mass != 1:
            raise ValueError(
                "expected weight and label_smoothing with a regularizer that selects one class per "
                f"row, got {self.omega.name}; weight the losses of reduction='none' instead."
            )
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.dim = dim
        self.label_smoothing = label_smoothing
        self.weight: Tensor | None
        self.register_buffer("weight", weight)

    def extra_repr(self) -> str:
        smoothing = f", label_smoothing={self.label_smoothing}" if self.label_smoothing else ""
        return f"{self.omega!r}, reduction={self.reduction!r}, dim={self.dim}{smoothing}"

    def forward(self, scores: Tensor, target: Any, mask: Tensor | None = None) -> Tensor:
        """The loss of ``scores`` (True in ``mask`` = entry may be selected) against ``target``."""
        dim = as_dim(self.dim, as_scores(scores).ndim)
        target = _as_target(target, scores)
        omega = with_parameters_of(self, "omega", self.omega) if self._parameters else self.omega
        kept = counted = None
        if not target.is_floating_point():
            weights, present = omega.target_from(
                target, scores, dim=dim, ignore_index=self.ignore_index
            )
            if present is not None:
                kept = _any_left(present.expand(scores.shape), dim, omega.event_dims)
                mask = present if mask is None else mask & present
            target = weights
        if self.weight is not None:
            counted = self._class_weights(target, scores, dim)
        smoothed = self._smoothed(target, scores, mask, dim)
        losses = omega.loss(scores, smoothed, mask, dim=dim)
        if kept is not None:
            losses = torch.where(kept, losses, 0.0)
        if counted is not None:
            losses = losses * counted
        return self._reduced(losses, kept, counted)

    def _reduced(self, losses: Tensor, kept: Tensor | None, counted: Tensor | None) -> Tensor:
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        if counted is not None:
            total = (counted if kept is None else torch.where(kept, counted, 0.0)).sum()
            return losses.sum() / torch.where(total == 0, 1.0, total)
        count = losses.numel() if kept is None else kept.sum().clamp_min(1)
        return losses.sum() / count

    def _class_weights(self, target: Tensor, scores: Tensor, dim: int) -> Tensor:
        """The weight of each problem: its target's classes, averaged."""
        weight = self.weight
        if weight is None or weight.shape != (scores.shape[dim],):
            raise ValueError(
                f"expected one weight for each of {scores.shape[dim]} classes, got shape "
                f"{None if weight is None else tuple(weight.shape)}."
            )
        return (target.to(scores.dtype).movedim(dim, -1) * weight.to(scores)).sum(-1)

    def _smoothed(self, target: Tensor, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """The target, mixed with the uniform distribution over the classes that are there."""
        share = self.label_smoothing
        if not share:
            return target
        there = (scores.detach() > -torch.inf) & (True if mask is None else mask)
        even = there.to(scores.dtype)
        even = even / even.sum(dim, keepdim=True).clamp_min(1)
        return (1 - share) * target + share * even


def _as_target(target: Any, scores: Tensor) -> Tensor:
    """A tensor beside the scores, from a tensor, a NumPy array or (nested) sequences of numbers."""
    if isinstance(target, Tensor):
        return target
    try:
        array = np.asarray(target)
        if array.dtype.kind not in "biuf":
            raise ValueError
        return torch.as_tensor(array, device=scores.device)
    except (ValueError, TypeError):
        raise TypeError(
            "expected a target that is a tensor, a NumPy array or a nested sequence of numbers of "
            f"equal lengths, got {type(target).__name__}; pad lists of different lengths with "
            "ignore_index."
        ) from None


def _any_left(present: Tensor, dim: int, event_dims: int) -> Tensor:
    if event_dims == 1:
        return present.any(dim)
    return present.flatten(-event_dims).any(-1)
