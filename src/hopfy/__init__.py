"""hopfy: sparse and structured Hopfield networks for PyTorch."""

from hopfy import functional, structures
from hopfy._warnings import ConvergenceWarning
from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis, omega_from

__version__ = "0.1.0"

__all__ = [
    "ConvergenceWarning",
    "Norm",
    "Omega",
    "Shannon",
    "SparseMAP",
    "Tsallis",
    "__version__",
    "functional",
    "omega_from",
    "structures",
]
