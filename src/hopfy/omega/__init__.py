"""Regularizers as objects: one Omega gives a prediction, a conjugate, a loss and a margin."""

from hopfy._facts import resolve_names_with
from hopfy.omega._base import Omega
from hopfy.omega._capped import Capped
from hopfy.omega._elementwise import Exponential, Polynomial, Quadratic
from hopfy.omega._entropic_ksubsets import EntropicKSubsets
from hopfy.omega._names import omega_from
from hopfy.omega._norm import Norm
from hopfy.omega._shannon import Shannon
from hopfy.omega._sparsemap import SparseMAP
from hopfy.omega._tsallis import Tsallis

resolve_names_with(omega_from)

__all__ = [
    "Capped",
    "EntropicKSubsets",
    "Exponential",
    "Norm",
    "Omega",
    "Polynomial",
    "Quadratic",
    "Shannon",
    "SparseMAP",
    "Tsallis",
    "omega_from",
]
