"""Data sets: found in ``$HOPFY_DATA``, in the user's cache, or downloaded and checked.

>>> from hopfy import data
>>> "mnist" in [dataset.name for dataset in data.datasets()]
True
"""

from hopfy.data._ag_news import ag_news
from hopfy.data._beer import beer, beer_annotations
from hopfy.data._digit_bags import digit_bags
from hopfy.data._digits import digits
from hopfy.data._eraser import eraser_movies
from hopfy.data._files import Dataset, MissingDataError, RemoteFile
from hopfy.data._images import Images
from hopfy.data._imdb import imdb
from hopfy.data._labelled_bags import LabelledBags
from hopfy.data._mil import mil_benchmark
from hopfy.data._mnist import mnist
from hopfy.data._registry import dataset, datasets
from hopfy.data._sst import sst
from hopfy.data._texts import AnnotatedTexts, Texts

__all__ = [
    "AnnotatedTexts",
    "Dataset",
    "Images",
    "LabelledBags",
    "MissingDataError",
    "RemoteFile",
    "Texts",
    "ag_news",
    "beer",
    "beer_annotations",
    "dataset",
    "datasets",
    "digit_bags",
    "digits",
    "eraser_movies",
    "imdb",
    "mil_benchmark",
    "mnist",
    "sst",
]
