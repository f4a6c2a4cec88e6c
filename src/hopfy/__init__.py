"""hopfy: sparse and structured Hopfield networks for PyTorch."""

from hopfy import functional, structures
from hopfy.losses import FenchelYoungLoss
from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis, omega_from

__version__ = "0.1.0"

__all__ = [
    "FenchelYoungLoss",
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
