"""Elephant, Fox and Tiger: images as bags of segments."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy
import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._labeled_bags import LabeledBags

__all__ = ["MIL", "Animal", "mil_benchmark"]

MIL = Dataset(
    name="mil",
    title="Elephant, Fox, Tiger: 200 images each, as bags of segments with 230 features",
    files=(
        RemoteFile(
            "elephant_100x100.mat",
            2_412_040,
            "b871820b5df11ef9050e0c0ec73e3d4d95b3e59b64bac237ec115548a5024a13",
        ),
        RemoteFile(
            "fox_100x100.mat",
            2_288_968,
            "9c550a12a4417f99eb81ad6fd16506ab1772a18dcb5fcb2e7a555a99f07c7ad2",
        ),
        RemoteFile(
            "tiger_100x100.mat",
            2_115_672,
            "b37a443b25ed98089d86900db6dc3774ce4293e56c186337518e977ffff0b817",
        ),
    ),
    source=(
        "take it from the MIL data of Andrews, Tsochantaridis and Hofmann "
        "(MIL-Data-2002-Musk-Corel-Trec9-MATLAB.tgz)"
    ),
    why="it is published as one archive of many data sets, of which three files are needed",
)

Animal = Literal["elephant", "fox", "tiger"]


def mil_benchmark(animal: Animal) -> LabeledBags:
    """100 bags with the animal and 100 without: 2 to 13 segments each, 230 features (float32)."""
    animals: tuple[str, ...] = get_args(Animal)
    if animal not in animals:
        raise ValueError(f"expected an animal among {', '.join(animals)}, got {animal!r}.")
    return read_bags(MIL.path(f"{animal}_100x100.mat"))


def read_bags(path: Path) -> LabeledBags:
    """Bags from a MATLAB file with sparse ``features``, ``labels`` (+1, -1) and ``bag_ids``."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImportError(
            "the MIL benchmarks need scipy: pip install 'hopfy[experiments]'."
        ) from None
    try:
        content = loadmat(path)
        features = numpy.asarray(content["features"].todense(), dtype=numpy.float32)
        ids = _row(content["bag_ids"])
        labels = _row(content["labels"]) > 0
    except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError):
        raise ValueError(
            f"expected a MATLAB file with features, labels and bag_ids, got something else: {path}."
        ) from None
    order = numpy.argsort(ids, kind="stable")
    _, first, lengths = numpy.unique(ids[order], return_index=True, return_counts=True)
    of_bags = labels[order][first]
    if not numpy.array_equal(numpy.repeat(of_bags, lengths), labels[order]):
        raise ValueError(f"expected one label for all instances of a bag, got several: {path}.")
    return LabeledBags(
        torch.from_numpy(features[order]),
        torch.from_numpy(lengths.astype(numpy.int64)),
        torch.from_numpy(of_bags.astype(numpy.int64)),
    )


def _row(entry: object) -> numpy.ndarray:
    """A dense row, whether it was stored sparsely or not."""
    dense = entry.todense() if hasattr(entry, "todense") else entry
    return numpy.asarray(dense).ravel()
