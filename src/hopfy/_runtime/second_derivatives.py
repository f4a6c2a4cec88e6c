"""Gradients of fused operations as torch operations, which can be differentiated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["recorded_gradients"]


def recorded_gradients(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    cotangent: Tensor,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of ``function(*inputs)`` in the needed inputs, recorded; None for the others.

    Inputs may be one tensor several times, as in self-attention: a view of each tells them apart,
    so that each gets its own part of the gradient and not the sum of all.
    """
    with torch.enable_grad():
        views = [x.view_as(x) for x in inputs]
        output = function(*views).view(cotangent.shape)
    wanted = [x for x, need in zip(views, needed, strict=True) if need]
    found = iter(torch.autograd.grad(output, wanted, cotangent, create_graph=True))
    return [next(found) if need else None for need in needed]
