"""hopfy: sparse and structured Hopfield networks for PyTorch.

===============================  ==================================================================
`HopfieldNetwork`, `Retrieval`   energies, updates and retrieval, with certificates
`AssociativeMemory`, `Recall`    a store of patterns that grows, forgets and is saved
`hopfy.nn`                       layers: associations, pooling, lookup, attention, transformers
`hopfy.functional`               the maps as functions of tensors, and attention
`Omega` and its subclasses       regularizers: map, conjugate, loss and margin of each
`hopfy.structures`               sets of structures for `SparseMAP`; `hopfy.states`: state spaces
`FenchelYoungLoss`               losses; `hopfy.theory`: the propositions of the paper as functions
`hopfy.models`                   networks of the literature; `hopfy.search`: exact search
`hopfy.estimators`               models in the manner of scikit-learn
`hopfy.distributed`              memories, networks and layers over many processes
`hopfy.paper`                    the experiments of the paper; `hopfy.plot`, `hopfy.app`: pictures
===============================  ==================================================================
"""

from importlib import import_module

from hopfy import functional, nn, structures, theory
from hopfy._runtime.backends import use_backend
from hopfy._warnings import ConvergenceWarning
from hopfy.losses import FenchelYoungLoss
from hopfy.memory import AssociativeMemory, Recall
from hopfy.network import HopfieldNetwork, Retrieval
from hopfy.omega import Norm, Omega, Shannon, SparseMAP, Tsallis, omega_from

__version__ = "0.2.0"

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

_LAZY = frozenset(
    {
        "app",
        "bench",
        "distributed",
        "estimators",
        "integrations",
        "losses",
        "memory",
        "models",
        "network",
        "omega",
        "paper",
        "plot",
        "search",
        "states",
    }
)
_MOVED = {
    "data": "paper.data",
    "demo": "paper.demo",
    "experiments": "paper",
    "report": "paper.report",
}


def __getattr__(name: str) -> object:
    """Submodules that are imported when they are first used."""
    if name in _LAZY:
        return import_module(f"hopfy.{name}")
    if name in _MOVED:
        raise AttributeError(f"hopfy.{name} is hopfy.{_MOVED[name]} now.")
    raise AttributeError(f"module 'hopfy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
