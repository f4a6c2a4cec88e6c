"""Data sets: found in ``$HOPFY_DATA``, in the user's cache, or downloaded and checked.

>>> from hopfy import data
>>> [dataset.name for dataset in data.datasets()]
['mnist']
"""

from hopfy.data._digits import digits
from hopfy.data._files import Dataset, MissingDataError, RemoteFile
from hopfy.data._images import Images
from hopfy.data._mnist import mnist
from hopfy.data._registry import dataset, datasets

__all__ = [
    "Dataset",
    "Images",
    "MissingDataError",
    "RemoteFile",
    "dataset",
    "datasets",
    "digits",
    "mnist",
]
