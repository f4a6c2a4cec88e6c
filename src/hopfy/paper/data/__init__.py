"""Data sets: found in ``$HOPFY_DATA``, in the user's cache, or downloaded and checked.

>>> from hopfy.paper import data
>>> "mnist" in [dataset.name for dataset in data.datasets()]
True
"""

from hopfy.paper.data._ag_news import ag_news
from hopfy.paper.data._beer import beer, beer_annotations
from hopfy.paper.data._cifar10 import cifar10
from hopfy.paper.data._digit_bags import digit_bags
from hopfy.paper.data._digits import digits
from hopfy.paper.data._eraser import eraser_movies
from hopfy.paper.data._files import Dataset, MissingDataError, RemoteFile
from hopfy.paper.data._glove import glove_100d
from hopfy.paper.data._images import Images
from hopfy.paper.data._imdb import imdb
from hopfy.paper.data._labeled_bags import LabeledBags
from hopfy.paper.data._mil import mil_benchmark
from hopfy.paper.data._mnist import mnist
from hopfy.paper.data._registry import dataset, datasets
from hopfy.paper.data._sst import sst
from hopfy.paper.data._texts import AnnotatedTexts, Texts
from hopfy.paper.data._tiny_imagenet import tiny_imagenet

__all__ = [
    "AnnotatedTexts",
    "Dataset",
    "Images",
    "LabeledBags",
    "MissingDataError",
    "RemoteFile",
    "Texts",
    "ag_news",
    "beer",
    "beer_annotations",
    "cifar10",
    "dataset",
    "datasets",
    "digit_bags",
    "digits",
    "eraser_movies",
    "glove_100d",
    "imdb",
    "mil_benchmark",
    "mnist",
    "sst",
    "tiny_imagenet",
]
