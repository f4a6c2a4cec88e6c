"""What is kept of Table 2: the scores of every seed, so that a later run can add to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any, NamedTuple

__all__ = ["Runs", "merged", "recorded", "runs_of"]

_OF_SEEDS = ("validation", "test", "folds", "wrong")
_KEPT = ("task", "method", "seeds", *_OF_SEEDS[:-1], "settings", "tried", "search")

Results = Mapping[str, Any]


class Runs(NamedTuple):
    """The runs behind a mean: how many, their mean, and their deviation (0 for a single one)."""

    number: int
    mean: float
    deviation: float

    def __add__(self, other: Runs) -> Runs:  # type: ignore[override]
        """Of both together.

        >>> Runs(1, 4.0, 0.0) + Runs(1, 2.0, 0.0)
        Runs(number=2, mean=3.0, deviation=1.4142135623730951)
        """
        count = self.number + other.number
        mean = (self.number * self.mean + other.number * other.mean) / count
        squares = sum(
            (each.number - 1) * each.deviation**2 + each.number * (each.mean - mean) ** 2
            for each in (self, other)
        )
        return Runs(count, mean, math.sqrt(squares / (count - 1)))


def runs_of(cell: Results) -> Runs | None:
    """The runs of a recorded cell; None if there are none.

    ``test`` has the score of each of its ``seeds``. ``earlier``, if it is there, stands for seeds of
    which only mean and deviation are known; it counts until all of these have been run again.

    >>> earlier = {"seeds": [0], "mean": 91.0, "deviation": 0.0}
    >>> runs_of({"seeds": [1, 2], "test": [90.0, 92.0], "earlier": earlier})
    Runs(number=3, mean=91.0, deviation=1.0)
    """
    earlier = cell.get("earlier")
    if earlier is not None and set(earlier["seeds"]) <= set(cell["seeds"]):
        earlier = None
    known = () if earlier is None else earlier["seeds"]
    pairs = zip(cell["seeds"], cell["test"], strict=True)
    scores = [score for seed, score in pairs if seed not in known]
    parts = []
    if scores:
        spread = stdev(scores) if len(scores) > 1 else 0.0
        parts.append(Runs(len(scores), fmean(scores), spread))
    if earlier is not None:
        parts.append(Runs(len(known), earlier["mean"], earlier["deviation"]))
    return sum(parts[1:], parts[0]) if parts else None


def recorded(results: Results) -> dict[str, Any]:
    """Results without what can be computed again.

    Of the test bags of digits only the ``wrong`` ones are listed, for each seed.
    """
    cells = []
    for cell in results["cells"]:
        kept = {name: cell[name] for name in _KEPT if cell.get(name)}
        if cell["right"]:
            kept["wrong"] = [
                [number for number, one in enumerate(bits) if one == "0"] for bits in cell["right"]
            ]
        cells.append(kept)
    return {"source": results["source"], "cells": cells}


def merged(old: Results, new: Results) -> dict[str, Any]:
    """A new record, with the cells, and the seeds of the same settings, that only an old one has."""
    found = {(cell["task"], cell["method"]): cell for cell in old["cells"]}
    for cell in new["cells"]:
        key = cell["task"], cell["method"]
        found[key] = _joined(found[key], cell) if key in found else cell
    return {**old, **new, "cells": list(found.values())}


def _joined(old: Results, new: Results) -> Results:
    """The seeds of both, in their order; the new one's where both have one."""
    if old.get("settings", new["settings"]) != new["settings"]:
        return new
    places = {seed: (old, place) for place, seed in enumerate(old["seeds"])}
    places.update({seed: (new, place) for place, seed in enumerate(new["seeds"])})
    seeds = sorted(places)
    joined: dict[str, Any] = {**new, "seeds": seeds}
    for name in _OF_SEEDS:
        if name in new:
            joined[name] = [cell[name][place] for cell, place in map(places.__getitem__, seeds)]
    if "earlier" in old and not set(old["earlier"]["seeds"]) <= set(seeds):
        joined["earlier"] = old["earlier"]
    return joined
