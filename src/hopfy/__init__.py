"""hopfy: sparse and structured Hopfield networks for PyTorch."""

from hopfy import functional, structures, theory
from hopfy.network import HopfieldNetwork, Retrieval
from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis, omega_from

__version__ = "0.1.0"

__all__ = [
    "HopfieldNetwork",
    "Norm",
    "Omega",
    "Retrieval",
    "Shannon",
    "SparseMAP",
    "Tsallis",
    "__version__",
    "functional",
    "omega_from",
    "structures",
    "theory",
]
