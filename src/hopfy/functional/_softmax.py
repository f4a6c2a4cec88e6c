"""Softmax with a mask, zeros for rows with nothing to select."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._runtime.dispatch import values_can_be_read
from hopfy.functional._rows import along_rows, checked

__all__ = ["softmax"]


def softmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r""":math:`y_i = e^{\theta_i} / \sum_j e^{\theta_j}`: the regularizer is Shannon's negentropy.

    Equals `torch.softmax`, except that a row with nothing to select (all masked, or all ``-inf``)
    gives zeros, forward and backward, instead of NaN.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.softmax(torch.tensor([1.0, 0.5, -1.0]), mask=torch.tensor([True, True, False]))
    tensor([0.6225, 0.3775, 0.0000])
    """
    dim = checked(scores, dim)
    return along_rows(scores, dim, mask, _masked_softmax)


def _masked_softmax(rows: Tensor) -> Tensor:
    if values_can_be_read(rows):
        weights = torch.softmax(rows, -1)
        if not bool(weights.detach()[..., 0].isnan().any()):  # a spoiled row is NaN throughout
            return weights
    nothing = (rows == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(torch.where(nothing, 0.0, rows), -1).masked_fill(nothing, 0.0)
