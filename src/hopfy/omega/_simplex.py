"""What the regularizers on the probability simplex share."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._checks import as_dim, one_hot
from hopfy._facts import IndexTarget
from hopfy.omega._base import Omega

__all__ = ["SimplexOmega"]


class SimplexOmega(Omega):
    r"""A regularizer whose domain is the simplex :math:`\{y \ge 0,\ 1^\top y = 1\}`.

    The generalized negentropies (Def. 4) are those that are zero at one-hot vectors, strictly convex
    and symmetric.
    """

    has_fixed_mass = True
    largest_mass = 1.0

    def violation(self, weights: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        weights = weights.detach()
        mass = 1.0 if mask is None else mask.any(dim).to(weights.dtype)  # nothing there: zeros
        return torch.maximum((-weights).amax(dim), (weights.sum(dim) - mass).abs()).clamp_min(0)

    def target_from(
        self, indices: Tensor, scores: Tensor, *, dim: int = -1, ignore_index: int = -100
    ) -> IndexTarget:
        """Class indices, shaped like the scores without ``dim``."""
        dim = as_dim(dim, scores.ndim)
        expected = scores.shape[:dim] + scores.shape[dim + 1 :]
        if indices.shape != expected or indices.dtype is torch.bool:
            raise ValueError(
                f"expected class indices of shape {tuple(expected)} or weights of shape "
                f"{tuple(scores.shape)}, got {indices.dtype} of shape {tuple(indices.shape)}."
            )
        kept = (indices != ignore_index).unsqueeze(dim)
        return IndexTarget(one_hot(indices, scores, dim, ignore_index, "class indices"), kept)
