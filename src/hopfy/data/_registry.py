"""Every data set that hopfy can fetch."""

from __future__ import annotations

from hopfy.data._files import Dataset
from hopfy.data._mnist import MNIST

__all__ = ["dataset", "datasets"]


def datasets() -> list[Dataset]:
    """All of them."""
    return [MNIST]


def dataset(name: str) -> Dataset:
    """The data set called ``name``.

    >>> dataset("mnist").size
    11594722
    """
    for found in datasets():
        if found.name == name:
            return found
    known = ", ".join(found.name for found in datasets())
    raise ValueError(f"expected a data set among {known}, got {name!r}.")
