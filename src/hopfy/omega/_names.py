"""Regularisers by name, for command lines and configuration files."""

from __future__ import annotations

import re

from hopfy.omega._base import Omega
from hopfy.omega._norm import Norm
from hopfy.omega._shannon import Shannon
from hopfy.omega._sparsemap import SparseMAP
from hopfy.omega._tsallis import Tsallis
from hopfy.structures import KSubsets, SequentialKSubsets

__all__ = ["omega_from"]

_EXAMPLES = '"softmax", "sparsemax", "1.5-entmax", "5-normmax", "3-subsets", "sequential-3-subsets"'


def omega_from(name: str | Omega) -> Omega:
    """The regulariser with this name; an `Omega` is returned as it is.

    >>> import hopfy
    >>> hopfy.omega_from("1.5-entmax")
    Tsallis(alpha=1.5)
    >>> hopfy.omega_from("inf-normmax")
    Norm(alpha=inf)
    >>> hopfy.omega_from("3-subsets")
    SparseMAP(structure=KSubsets(k=3))
    >>> hopfy.omega_from("sequential-3-subsets")
    SparseMAP(structure=SequentialKSubsets(k=3, transition=0.0))
    """
    if isinstance(name, Omega):
        return name
    if not isinstance(name, str):
        raise TypeError(f"expected a name such as {_EXAMPLES}, got {name!r}.")
    key = name.strip().lower()
    if key == "softmax":
        return Shannon()
    if key == "sparsemax":
        return Tsallis(2.0)
    match = re.fullmatch(r"(inf|\d+(?:\.\d+)?)-(entmax|normmax|subsets)", key)
    sequential = re.fullmatch(r"sequential-(\d+)-subsets", key)
    if sequential is not None:
        return SparseMAP(SequentialKSubsets(int(sequential[1])))
    if match is None:
        raise ValueError(f"expected a name such as {_EXAMPLES}, got {name!r}.")
    number, family = float(match[1]), match[2]
    if family == "entmax":
        return Tsallis(number)
    if family == "normmax":
        return Norm(number)
    return SparseMAP(KSubsets(int(number) if number.is_integer() else number))
