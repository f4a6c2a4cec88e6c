"""Regularizers by name, for command lines and configuration files."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache

from hopfy._runtime.dispatch import is_compiling
from hopfy.omega._base import Omega
from hopfy.omega._capped import Capped
from hopfy.omega._entropic_ksubsets import EntropicKSubsets
from hopfy.omega._norm import Norm
from hopfy.omega._shannon import Shannon
from hopfy.omega._sparsemap import SparseMAP
from hopfy.omega._tsallis import Tsallis
from hopfy.structures import KSubsets, SequentialKSubsets

__all__ = ["omega_from"]

_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_FAMILIES = {
    "softmax": "softmax",
    "shannon": "softmax",
    "sparsemax": "sparsemax",
    "entmax": "{}-entmax",
    "tsallis": "{}-entmax",
    "normmax": "{}-normmax",
    "subsets": "{}-subsets",
    "ksubsets": "{}-subsets",
    "topk": "{}-subsets",
    "entropicsubsets": "entropic-{}-subsets",
    "entropicksubsets": "entropic-{}-subsets",
    "capped": "{}-capped",
    "sequentialsubsets": "sequential-{}-subsets",
    "sequentialksubsets": "sequential-{}-subsets",
}
_EXAMPLES = '"softmax", "sparsemax", "1.5-entmax", "5-normmax", "3-subsets", "sequential-3-subsets"'


def omega_from(name: str | Omega) -> Omega:
    """The regularizer with this name; an `Omega` is returned as it is.

    >>> import hopfy
    >>> hopfy.omega_from("1.5-entmax")
    Tsallis(alpha=1.5)
    >>> hopfy.omega_from("inf-normmax")
    Norm(alpha=inf)
    >>> hopfy.omega_from("3-subsets")
    SparseMAP(structure=KSubsets(k=3))
    >>> hopfy.omega_from("sequential-3-subsets")
    SparseMAP(structure=SequentialKSubsets(k=3, transition=0.0))
    >>> hopfy.omega_from("entropic-3-subsets"), hopfy.omega_from("0.5-capped")
    (EntropicKSubsets(k=3), Capped(upper=0.5))
    """
    if isinstance(name, Omega):
        return name
    if not isinstance(name, str):
        raise TypeError(f"expected a name such as {_EXAMPLES}, got {name!r}.")
    return _made(name) if is_compiling() else _remembered(name)


def _made(name: str) -> Omega:
    key = name.strip().lower()
    if key == "softmax":
        return Shannon()
    if key == "sparsemax":
        return Tsallis(2.0)
    sequential = re.fullmatch(rf"sequential-(\d+)-subsets(?:, transition ({_NUMBER}))?", key)
    if sequential is not None:
        transition = float(sequential[2] or 0.0)
        return SparseMAP(SequentialKSubsets(int(sequential[1]), transition))
    entropic = re.fullmatch(r"entropic-(\d+(?:\.\d+)?)-subsets", key)
    if entropic is not None:
        return EntropicKSubsets(_whole(float(entropic[1])))
    match = re.fullmatch(r"(inf|\d+(?:\.\d+)?)-(entmax|normmax|subsets|capped)", key)
    if match is None:
        raise ValueError(f"expected a name such as {_EXAMPLES}, got {name!r}{_suggestion(key)}.")
    number, family = float(match[1]), match[2]
    if family == "entmax":
        return Tsallis(number)
    if family == "normmax":
        return Norm(number)
    if family == "capped":
        return Capped(number)
    return SparseMAP(KSubsets(_whole(number)))


# Regularizers are immutable: one object serves everyone who writes the same name.
_remembered = lru_cache(maxsize=256)(_made)


def _whole(number: float) -> float:
    return int(number) if number.is_integer() else number


def _suggestion(key: str) -> str:
    """The nearest name: ``"entmax15"`` means ``"1.5-entmax"``, as other packages call it."""
    family = get_close_matches(re.sub(r"[^a-z]", "", key), _FAMILIES, n=1, cutoff=0.6)
    if not family:
        return ""
    nearest = _FAMILIES[family[0]]
    digits = re.search(_NUMBER, key)
    if "{}" in nearest:
        number = digits[0].strip("-") if digits else "2"
        if "." not in number and len(number) == 2 and family[0].startswith(("entmax", "tsallis")):
            number = f"{number[0]}.{number[1]}"  # entmax15 and entmax_15 stand for alpha = 1.5
        nearest = nearest.format(number.removesuffix(".0"))
    return f'; did you mean "{nearest}"'
