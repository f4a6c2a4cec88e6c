r"""The networks of the literature, each in one line.

====================  =======================================  ====================  ===============
function              update                                   omega, state          paper
====================  =======================================  ====================  ===============
`classic`             :math:`\mathrm{sign}(X^\top X q)`        quadratic, sign       Hopfield 1982
`dense`               :math:`\mathrm{sign}(X^\top (Xq)^n)`     polynomial, sign      Krotov 2016
`exponential`         :math:`\mathrm{sign}(X^\top e^{Xq})`     exponential, sign     Demircigil 2017
`modern`              :math:`X^\top \mathrm{softmax}`          Shannon, Euclidean    Ramsauer 2020
`sparse`              :math:`X^\top \mathrm{sparsemax}`        Tsallis 2, Euclidean  Hu 2023
`generalized_sparse`  :math:`X^\top \mathrm{entmax}_\alpha`    Tsallis, Euclidean    Wu 2023
`entropic_topk`       :math:`X^\top \sigma(\beta X q - \tau)`  entropic k-subsets    Davydov 2023
`universal`           projection, separation, similarity       any                   Millidge 2022
====================  =======================================  ====================  ===============

All but the last are a `hopfy.HopfieldNetwork` with its energy, dynamics and certificates (where there
are any).

>>> import torch, hopfy
>>> patterns = torch.tensor([[1.0, 1, 1, -1, -1, -1], [1, -1, 1, -1, 1, -1]])
>>> hopfy.models.classic(patterns).retrieve(torch.tensor([1.0, 1, 1, -1, -1, 1])).state
tensor([ 1.,  1.,  1., -1., -1., -1.])
"""

from hopfy.models._asynchronous import Asynchronous
from hopfy.models._networks import (
    classic,
    dense,
    entropic_topk,
    exponential,
    generalized_sparse,
    modern,
    sparse,
)
from hopfy.models._universal import UniversalNetwork, universal

__all__ = [
    "Asynchronous",
    "UniversalNetwork",
    "classic",
    "dense",
    "entropic_topk",
    "exponential",
    "generalized_sparse",
    "modern",
    "sparse",
    "universal",
]
