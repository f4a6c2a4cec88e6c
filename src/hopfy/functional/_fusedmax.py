"""Fusedmax: sparse attention on neighbors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hopfy._checks import Rule, as_parameter
from hopfy._kernels import total_variation as kernel
from hopfy.functional._entmax import sparsemax
from hopfy.functional._rows import along_rows, checked
from hopfy.functional._symmetric_map import symmetric_map

__all__ = ["fusedmax"]

_smooth = symmetric_map("total_variation", kernel.solve, kernel.vjp, kernel.slope)
_STRENGTH = Rule("strength", ">= 0 and finite", lambda s: (s >= 0) & (s < math.inf))


def fusedmax(
    scores: Tensor, strength: float | Tensor = 1.0, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Sparse probabilities that neighbors share:
    :math:`\arg\min_{y \in \triangle} \tfrac12 \|y - \theta\|^2 + \lambda \sum_i |y_{i+1} - y_i|`.

    It is `sparsemax` of the scores after total-variation denoising (Niculae & Blondel, 2017), which
    is exact and takes O(N). Gradients flow to the scores.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        strength: :math:`\lambda`, what a unit of difference between neighbors costs; 0 gives
            sparsemax. A tensor broadcasts over the rows; it gets no gradient.
        dim: the dimension that sums to one.
        mask: True where an entry may be selected; broadcasts to the scores. The neighbors of a
            masked entry are not neighbors of each other, so padding changes nothing.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> scores = torch.tensor([1.0, 0.2, 0.9, -1.0, 0.4])
    >>> F.fusedmax(scores, 0.0)
    tensor([0.5500, 0.0000, 0.4500, 0.0000, 0.0000])
    >>> F.fusedmax(scores, 0.5)
    tensor([0.3333, 0.3333, 0.3333, 0.0000, 0.0000])
    """
    dim = checked(scores, dim)
    strengths = as_parameter(strength, scores, dim, _STRENGTH).detach()

    def apply(rows: Tensor) -> Tensor:
        return sparsemax(_smooth(_lifted(rows, strengths), strengths))

    return along_rows(scores, dim, mask, apply, in_steps=True)


def _lifted(rows: Tensor, strengths: Tensor) -> Tensor:
    r"""Scores out of reach raised to where they still are, so that they cost the others no digits.

    The best entry keeps at least :math:`\max\theta - 2\lambda`, so the threshold of sparsemax is not
    below :math:`h = \max\theta - 2\lambda - 1`. An entry below :math:`h - 2\lambda` is in no set
    :math:`\{x > t\}` with :math:`t \ge h`, wherever it is exactly.
    """
    top = rows.detach().amax(-1, keepdim=True)
    low = top - 4 * strengths - 2 - 1e-3 * top.abs()
    return torch.where((rows < low) & (rows > -math.inf), low, rows)
