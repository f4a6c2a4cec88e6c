"""K-MIL on digits: make the bags of a seed, train on them, test once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hopfy.estimators import Bags, ExponentialDecay, Training
from hopfy.estimators.training import ClassLoss, Labeled, outputs_of, seeded, train
from hopfy.paper import data
from hopfy.paper.data import Images, LabeledBags
from hopfy.paper.mil._networks import BagModel

__all__ = ["LENGTHS", "DigitTask", "ImageBags", "train_on_digits"]

LENGTHS = {1: (10, 1), 2: (11, 2), 3: (12, 3), 5: (14, 5)}
"""Mean and deviation of a bag's length for each K (App. G.1)."""

_MEAN, _DEVIATION = 0.1307, 0.3081
# Of MNIST's 60,000 training images; validation bags are made of the others.
_TRAINING = 50_000


@dataclass(frozen=True)
class DigitTask:
    """Bags of one kind.

    Attributes:
        source: ``"mnist"``, or ``"digits"``, the 8 x 8 ones that scikit-learn bundles.
        least: K, how many nines make a bag positive.
        bags: how many to train on.
        held_out: how many to validate and to test with, each.
        seed: every seed has other bags, and another network.
    """

    source: str
    least: int
    bags: int
    held_out: int
    seed: int


class ImageBags:
    """Bags of images that stay in one table; a batch copies only what it needs."""

    def __init__(self, images: Tensor, bags: LabeledBags) -> None:
        self._images = images
        self._places = Bags(bags.instances, bags.lengths)
        self.labels = bags.labels
        self.shape = tuple(images.shape[1:])

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, numbers: Sequence[int]) -> Mapping[str, Tensor]:
        """The arguments of `BagNetwork` for these bags."""
        batch = self._places.batch(numbers)
        return {**batch, "instances": self._images[batch["instances"]]}


def train_on_digits(
    task: DigitTask, model: BagModel, training: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Accuracies in percent on the validation and the test bags, at the best validation epoch.

    ``training`` are settings of `Training`, with ``decay`` for its schedule. The answer says too
    which test bags were classified rightly, as a string of 0 and 1: all methods get the same ones.
    """
    bags = bags_of(task)
    settings = dict(training)
    decay = settings.pop("decay")
    with seeded(task.seed):
        network = model.network(bags["training"].shape)
        how = Training(**settings, schedule=ExponentialDecay(decay))
        history = train(
            network,
            ClassLoss(),
            Labeled(bags["training"], bags["training"].labels),
            how,
            validation=Labeled(bags["validation"], bags["validation"].labels),
            score=_accuracy,
        )
        answers = outputs_of(network, bags["test"], how.batch_size)
    right = _right(answers, bags["test"].labels)
    scores = [epoch["valid_score"] for epoch in history]
    return {
        "validation": [max(scores)],
        "test": [100 * float(right.double().mean())],
        "epochs": [1 + scores.index(max(scores))],
        "right": ["".join("01"[one] for one in right.tolist())],
    }


def bags_of(task: DigitTask) -> dict[str, ImageBags]:
    """Training, validation and test bags of which no two share an image."""
    made = {}
    for number, (name, (images, labels)) in enumerate(_parts(task.source).items()):
        count = task.bags if name == "training" else task.held_out
        bags = data.digit_bags(
            labels,
            task.least,
            bags=count,
            length=LENGTHS[task.least],
            seed=(task.seed, task.least, number),
        )
        made[name] = ImageBags(images, bags)
    return made


@lru_cache(maxsize=1)
def _parts(source: str) -> dict[str, Images]:
    """The images that training, validation and test bags are made of, normalized once."""
    if source == "mnist":
        own, test = data.mnist("train"), data.mnist("test")
        images, labels = _normal(own.images, 255), own.labels
        return {
            "training": Images(images[:_TRAINING], labels[:_TRAINING]),
            "validation": Images(images[_TRAINING:], labels[_TRAINING:]),
            "test": Images(_normal(test.images, 255), test.labels),
        }
    images, labels = data.digits()
    sizes = [len(images) - 1000, 400, 600]
    parts = zip(torch.split(_normal(images, 16), sizes), torch.split(labels, sizes), strict=True)
    names = ("training", "validation", "test")
    return {name: Images(*part) for name, part in zip(names, parts, strict=True)}


def _normal(images: Tensor, white: int) -> Tensor:
    return images.float().div_(white).sub_(_MEAN).div_(_DEVIATION)


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.squeeze(-1) > 0) == (labels > 0)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return 100 * float(_right(logits, labels).double().mean())
