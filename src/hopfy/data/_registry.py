"""Every data set that hopfy can fetch."""

from __future__ import annotations

from hopfy.data._ag_news import AG_NEWS
from hopfy.data._beer import BEER
from hopfy.data._eraser import ERASER_MOVIES
from hopfy.data._files import Dataset
from hopfy.data._imdb import IMDB
from hopfy.data._mil import MIL
from hopfy.data._mnist import MNIST
from hopfy.data._sst import SST

__all__ = ["dataset", "datasets"]


def datasets() -> list[Dataset]:
    """All of them."""
    return [MNIST, MIL, SST, AG_NEWS, IMDB, BEER, ERASER_MOVIES]


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
