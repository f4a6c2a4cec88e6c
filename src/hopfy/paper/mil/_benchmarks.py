"""Elephant, Fox and Tiger: nested cross-validation, all folds and seeds in one stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch import Tensor

from hopfy.estimators.training import seeded
from hopfy.paper import data
from hopfy.paper.data import LabeledBags
from hopfy.paper.mil._networks import BagModel
from hopfy.paper.mil._stacked_bags import BETA, DROPOUT, StackedBags
from hopfy.paper.mil._stacked_training import (
    Split,
    Stack,
    StackedSettings,
    Trained,
    train_stacked,
)

__all__ = ["nested_folds", "stack_of", "standardized", "train_on_benchmark"]

_SMALL = 1e-6
_FARTHEST = 3.0


def train_on_benchmark(
    animal: Any,
    seeds: Sequence[int],
    folds: int,
    models: Sequence[BagModel],
    training: Mapping[str, Any],
    *,
    standardize: bool = False,
) -> list[dict[str, Any]]:
    """Areas under the ROC curve in percent, for each model and seed the mean over its folds.

    The models differ in beta, dropout and initial weights at most, so that all their networks are one stack.
    ``training`` are settings of `StackedSettings`; ``standardize`` the features, see
    `standardized`, or take them as they are.
    """
    bags = data.mil_benchmark(animal)
    split = nested_folds(bags.labels, seeds, folds)
    if standardize:
        features = standardized(bags, split.training)
        features = replace(features, features=features.features.repeat(len(models), 1, 1))
    else:
        features = StackedBags(bags.instances.unsqueeze(0), bags.lengths)
    first = 1000 * seeds[0]
    with seeded(first):
        trained = train_stacked(
            stack_of(models, tuple(bags.instances.shape[1:]), seeds, folds),
            features,
            bags.labels,
            split,
            StackedSettings(**training),
            torch.Generator().manual_seed(first),
        )
    return [_scores(each, len(seeds), folds) for each in trained.parts(len(models))]


def stack_of(
    models: Sequence[BagModel], shape: tuple[int, ...], seeds: Sequence[int], folds: int
) -> Stack:
    """Networks of all models, seeds and folds; those of a fold begin alike whatever their beta and
    dropout."""
    networks, count = [], len(seeds) * folds
    for model in models:
        for seed in seeds:
            for fold in range(folds):
                with seeded(1000 * seed + fold if model.begin is None else model.begin):
                    networks.append(model.network(shape))
    given = {
        BETA: torch.tensor([model.beta for model in models]).repeat_interleave(count),
        DROPOUT: torch.tensor([model.dropout for model in models]).repeat_interleave(count),
    }
    return Stack(networks, models[0].stacked_pool(), given)


def _scores(trained: Trained, seeds: int, folds: int) -> dict[str, Any]:
    """A seed's folds together, since every fold's network has scores of its own scale."""
    areas = {"validation": trained.validation, "test": trained.test}
    found: dict[str, Any] = {
        name: (100 * each.view(seeds, folds).mean(1)).tolist() for name, each in areas.items()
    }
    by_fold = [
        [round(100 * area, 2) for area in own] for own in trained.test.view(seeds, folds).tolist()
    ]
    return {**found, "epochs": trained.epochs.tolist(), "right": [], "folds": by_fold}


def nested_folds(labels: Tensor, seeds: Sequence[int], folds: int) -> Split:
    """One network for each seed and fold: test on the fold, validate on a part of the others.

    Of the bags outside the fold one part of ``folds - 1`` is kept for validation, so that it is as
    large as the fold. Every part has as many positive bags as the whole, up to one.
    """
    from sklearn.model_selection import StratifiedKFold

    classes = labels.numpy()
    parts: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for seed in seeds:
        outer = StratifiedKFold(folds, shuffle=True, random_state=seed)
        inner = StratifiedKFold(folds - 1, shuffle=True, random_state=seed)
        for others, test in outer.split(classes, classes):
            training, validation = next(inner.split(others, classes[others]))
            for part, own in zip(parts, (others[training], others[validation], test), strict=True):
                part.append(own)
    return Split(*(torch.from_numpy(numpy.stack(part)) for part in parts))


def standardized(bags: LabeledBags, training: Tensor) -> StackedBags:
    """Features of zero mean and unit deviation over the training bags of each network.

    A feature that is constant there is only centered. Many are zero for almost all segments, so
    that single values lie 30 deviations away; they are moved to 3.
    """
    owner = torch.repeat_interleave(torch.arange(len(bags.lengths)), bags.lengths)
    features = []
    for own in training:
        known = bags.instances[torch.isin(owner, own)]
        deviation = known.std(0)
        deviation[deviation < _SMALL] = 1.0
        scaled = (bags.instances - known.mean(0)) / deviation
        features.append(scaled.clamp(-_FARTHEST, _FARTHEST))
    return StackedBags(torch.stack(features), bags.lengths)
