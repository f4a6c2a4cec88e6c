"""hopfy: sparse and structured Hopfield networks for PyTorch."""

from hopfy import functional, nn, structures
from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis, omega_from

__version__ = "0.1.0"

__all__ = [
    "Norm",
    "Omega",
    "Shannon",
    "SparseMAP",
    "Tsallis",
    "__version__",
    "functional",
    "nn",
    "omega_from",
    "structures",
]
