"""The training loop of the estimators, for networks of your own.

`train` runs epochs over `Labeled` samples with the settings of a `Training`, stops early by a
validation score and restores the best epoch's parameters.
"""

from hopfy.estimators._text import SimilarLengths
from hopfy.estimators._training import (
    Batches,
    ClassLoss,
    ExponentialDecay,
    Labeled,
    ReduceOnPlateau,
    ResolvedTraining,
    Samples,
    Training,
    hold_out,
    outputs_of,
    seeded,
    train,
)

__all__ = [
    "Batches",
    "ClassLoss",
    "ExponentialDecay",
    "Labeled",
    "ReduceOnPlateau",
    "ResolvedTraining",
    "Samples",
    "SimilarLengths",
    "Training",
    "hold_out",
    "outputs_of",
    "seeded",
    "train",
]
