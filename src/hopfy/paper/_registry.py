"""Which experiments there are: one public module of this package for each."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from hopfy.paper._base import Experiment

__all__ = ["load", "names"]

_PACKAGE = "hopfy.paper"
# Experiments that share a folder, by name.
_WITHIN = {
    "capacity": "recall.capacity",
    "robustness": "recall.robustness",
    "free-recall": "recall.free",
    "sequential-recall": "recall.sequential",
}
_NOT_EXPERIMENTS = {"claims", "data", "demo", "recall", "record", "report", "results", "terminal"}


def names() -> list[str]:
    """The names of all experiments, without importing them.

    >>> "table1" in names()
    True
    """
    package = import_module(_PACKAGE)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    own = {name for name in modules - _NOT_EXPERIMENTS if not name.startswith("_")}
    return sorted(own | set(_WITHIN))


def load(name: str) -> Experiment[Any]:
    """The experiment called ``name``."""
    if name not in names():
        known = ", ".join(names())
        raise ValueError(f"expected an experiment among {known}, got {name!r}.")
    experiment = import_module(f"{_PACKAGE}.{_WITHIN.get(name, name)}").experiment
    if not isinstance(experiment, Experiment):
        raise TypeError(f"expected {_PACKAGE}.{name}.experiment to be an Experiment.")
    return experiment
