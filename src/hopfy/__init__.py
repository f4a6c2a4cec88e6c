"""hopfy: sparse and structured Hopfield networks for PyTorch."""

from hopfy import functional, nn, structures, theory
from hopfy._runtime.backends import use_backend
from hopfy._warnings import ConvergenceWarning
from hopfy.losses import FenchelYoungLoss
from hopfy.memory import AssociativeMemory, Recall
from hopfy.network import HopfieldNetwork, Retrieval
from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis, omega_from

__version__ = "0.1.0"

__all__ = [
    "AssociativeMemory",
    "ConvergenceWarning",
    "FenchelYoungLoss",
    "HopfieldNetwork",
    "Norm",
    "Omega",
    "Recall",
    "Retrieval",
    "Shannon",
    "SparseMAP",
    "Tsallis",
    "__version__",
    "functional",
    "nn",
    "omega_from",
    "structures",
    "theory",
    "use_backend",
]
