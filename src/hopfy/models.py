r"""The networks of the literature, each in one line.

=========================  ======================================  ========================  ==============
function                   update                                  omega, state              paper
=========================  ======================================  ========================  ==============
`classic`                  :math:`\mathrm{sign}(X^\top X q)`        quadratic, sign           Hopfield 1982
`dense`                    :math:`\mathrm{sign}(X^\top (Xq)^n)`     polynomial, sign          Krotov 2016
`exponential`              :math:`\mathrm{sign}(X^\top e^{Xq})`     exponential, sign         Demircigil 2017
`modern`                   :math:`X^\top \mathrm{softmax}`          Shannon, Euclidean        Ramsauer 2020
`sparse`                   :math:`X^\top \mathrm{sparsemax}`        Tsallis 2, Euclidean      Hu 2023
`generalized_sparse`       :math:`X^\top \mathrm{entmax}_\alpha`    Tsallis, Euclidean        Wu 2023
=========================  ======================================  ========================  ==============

Every one is a `hopfy.HopfieldNetwork` with its energy, dynamics and certificates (where there are any).

>>> import torch, hopfy
>>> patterns = torch.tensor([[1.0, 1, 1, -1, -1, -1], [1, -1, 1, -1, 1, -1]])
>>> hopfy.models.classic(patterns).retrieve(torch.tensor([1.0, 1, 1, -1, -1, 1])).state
tensor([ 1.,  1.,  1., -1., -1., -1.])
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._checks import as_patterns, values_can_be_read
from hopfy.network import HopfieldNetwork
from hopfy.omega import Exponential, Polynomial, Quadratic, Shannon, Tsallis
from hopfy.states import Sign

__all__ = ["classic", "dense", "exponential", "generalized_sparse", "modern", "sparse"]


def classic(patterns: Tensor) -> HopfieldNetwork:
    r"""Hopfield (1982): :math:`q \leftarrow \mathrm{sign}(X^\top X q)` with the Hebbian matrix.

    All coordinates are updated at once; the energy is :math:`-\tfrac12\|X q\|^2`. A coordinate whose
    field is zero becomes 0.
    """
    return HopfieldNetwork(_signs(patterns), Quadratic(), 1.0, state=Sign())


def dense(patterns: Tensor, n: int = 3) -> HopfieldNetwork:
    r"""Krotov and Hopfield (2016): :math:`q \leftarrow \mathrm{sign}(X^\top (X q)^n)`."""
    return HopfieldNetwork(_signs(patterns), Polynomial(n), 1.0, state=Sign())


def exponential(patterns: Tensor, b: float | Tensor = 1.0) -> HopfieldNetwork:
    r"""Demircigil et al. (2017): :math:`q \leftarrow \mathrm{sign}(X^\top \exp(b X q))`."""
    return HopfieldNetwork(_signs(patterns), Exponential(b), 1.0, state=Sign())


def modern(patterns: Tensor, beta: float | Tensor = 1.0) -> HopfieldNetwork:
    r"""Ramsauer et al. (2020): :math:`q \leftarrow X^\top \mathrm{softmax}(\beta X q)`."""
    return HopfieldNetwork(patterns, Shannon(), beta)


def sparse(patterns: Tensor, beta: float | Tensor = 1.0) -> HopfieldNetwork:
    r"""Hu et al. (2023): :math:`q \leftarrow X^\top \mathrm{sparsemax}(\beta X q)`."""
    return HopfieldNetwork(patterns, Tsallis(2.0), beta)


def generalized_sparse(
    patterns: Tensor, alpha: float | Tensor = 1.5, beta: float | Tensor = 1.0
) -> HopfieldNetwork:
    r"""Wu et al. (2023): :math:`q \leftarrow X^\top \mathrm{entmax}_\alpha(\beta X q)`.

    An alpha that requires grad is learned; it receives the exact gradient.
    """
    return HopfieldNetwork(patterns, Tsallis(alpha), beta)


def _signs(patterns: Tensor) -> Tensor:
    patterns = as_patterns(patterns, "patterns")
    if values_can_be_read(patterns) and not bool((patterns.detach().abs() == 1).all()):
        other = patterns.detach()[patterns.detach().abs() != 1].flatten()[0].item()
        raise ValueError(
            f"expected patterns of -1 and 1, got {other:g} in them; use patterns.sign(), or "
            "HopfieldNetwork with another state."
        )
    return patterns if patterns.dtype != torch.float16 else patterns.float()
