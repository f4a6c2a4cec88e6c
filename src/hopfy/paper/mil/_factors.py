"""Why numbers of Table 2 differ from the published ones: one setting changed at a time.

``python -m hopfy.paper.mil._factors fox tiger`` trains softmax pooling with the settings of the
laptop profile, then with others, five seeds of ten folds each; ``... digits`` does so on bags of MNIST
digits, K = 3, one seed. A line for each is printed as soon as it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from hopfy.paper.mil._benchmarks import train_on_benchmark
from hopfy.paper.mil._claims import deviation
from hopfy.paper.mil._digits import DigitTask, train_on_digits
from hopfy.paper.mil._networks import BagModel

__all__ = ["ANIMALS", "DIGITS", "Factor", "on_animal", "on_digits"]


class Factor(NamedTuple):
    """What is changed: settings of the `BagModel`, of the training, and the features' scale."""

    name: str
    model: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    standardize: bool = False


ANIMALS = (
    Factor("the laptop profile's settings, beta = 1"),
    Factor("no layer norms", {"normalize": False}),
    Factor("standardized features", standardize=True),
    Factor("no layer norms, standardized features", {"normalize": False}, standardize=True),
    Factor("the last of 50 epochs", training={"choose": "last"}),
    Factor(
        "the last of 50 epochs, standardized features",
        training={"choose": "last"},
        standardize=True,
    ),
    Factor("the epoch of the lowest validation loss", training={"choose": "loss"}),
    Factor("patience of 50 epochs", training={"patience": 50}),
    Factor("learning rate 1.6e-4", training={"lr": 1.6e-4}),
    Factor("no bag dropout", {"dropout": 0.0}),
    Factor("beta = 0.1", {"beta": 0.1}),
    Factor("beta = 10", {"beta": 10.0}),
    Factor("steps of one bag", training={"batch_size": 1}),
)
_SLOWLY = {"lr": 1.6e-4, "decay": 0.98, "max_epochs": 25, "batch_size": 16}
DIGITS = (
    Factor("the laptop profile's settings"),
    Factor("layer norms", {"normalize": True}),
    Factor("16-bag steps at 1.6e-4, patience 5", training=_SLOWLY),
    Factor("layer norms, 16-bag steps at 1.6e-4, patience 5", {"normalize": True}, _SLOWLY),
)


def on_animal(
    animal: str, factor: Factor, *, seeds: Sequence[int] = range(5), folds: int = 10
) -> list[float]:
    """Areas under the ROC curve in percent, one for each seed."""
    model = BagModel("softmax", 32, heads=12, head_size=32, dropout=0.75, normalize=True)
    training = {"lr": 1e-3, "decay": 0.98, **factor.training}
    found = train_on_benchmark(
        animal,
        seeds,
        folds,
        [replace(model, **factor.model)],
        training,
        standardize=factor.standardize,
    )
    return list(found[0]["test"])


def on_digits(
    factor: Factor, method: str = "softmax", *, source: str = "mnist", bags: int = 2000
) -> list[float]:
    """Accuracies in percent for K = 3."""
    model = BagModel(method, 500, beta=0.5, heads=8, head_size=16)
    training = {"lr": 1e-3, "decay": 0.5, "max_epochs": 3, "batch_size": 8, **factor.training}
    task = DigitTask(source, 3, bags, bags // 4, seed=0)
    return list(train_on_digits(task, replace(model, **factor.model), training)["test"])


def _lines(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for factor in DIGITS if name == "digits" else ANIMALS:
            found = on_digits(factor) if name == "digits" else on_animal(name, factor)
            yield f"{name}, {factor.name}: {fmean(found):.1f} ± {deviation(found):.1f}"


if __name__ == "__main__":
    for line in _lines(sys.argv[1:] or ["fox", "tiger"]):
        print(line, flush=True)
