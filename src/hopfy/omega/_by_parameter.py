from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from hopfy.omega._base import Omega

__all__ = ["GradientByParameter"]


class GradientByParameter(Omega):
    """A regularizer whose conjugate depends on a tensor parameter beyond the prediction.

    Conjugate and loss have the gradient in the prediction's own parameter as well.
    """

    def conjugate(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return super().conjugate(scores, mask, dim=dim) + self._added(scores, mask, dim)

    def loss(
        self, scores: Tensor, target: Tensor, mask: Tensor | None = None, *, dim: int = -1
    ) -> Tensor:
        loss = super().loss(scores, target, mask, dim=dim)
        return loss + self._added(scores, mask, dim)

    def _added(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor | float:
        if not (torch.is_grad_enabled() and self.requires_grad):
            return 0.0
        return self._by_parameter(scores, mask, dim)

    @abstractmethod
    def _by_parameter(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Zero, with the gradient of the conjugate in the parameter."""
