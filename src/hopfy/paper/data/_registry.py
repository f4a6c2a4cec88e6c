"""Every data set that hopfy can fetch."""

from __future__ import annotations

from hopfy.paper.data._ag_news import AG_NEWS
from hopfy.paper.data._beer import BEER
from hopfy.paper.data._cifar10 import CIFAR10
from hopfy.paper.data._eraser import ERASER_MOVIES
from hopfy.paper.data._files import Dataset
from hopfy.paper.data._glove import GLOVE_100D
from hopfy.paper.data._imdb import IMDB
from hopfy.paper.data._mil import MIL
from hopfy.paper.data._mnist import MNIST
from hopfy.paper.data._sst import SST
from hopfy.paper.data._tiny_imagenet import TINY_IMAGENET

__all__ = ["dataset", "datasets"]


def datasets() -> list[Dataset]:
    """All of them."""
    texts = [SST, AG_NEWS, IMDB, BEER, ERASER_MOVIES, GLOVE_100D]
    return [MNIST, MIL, *texts, CIFAR10, TINY_IMAGENET]


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
