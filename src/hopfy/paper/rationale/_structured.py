"""Does it help to train with the sequence structure? Trials on ERASER's movies, by validation data.

``python -m hopfy.paper.rationale._structured "k-subsets" "transition 1"`` trains the named trials (all of
them without a name) on the last 300 words of the reviews and prints, for several transitions at test
time, how the selected words of the *validation* reviews agree with people. The test set plays no part.
A number among the names is the seed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hopfy.estimators import RationaleClassifier, RationaleOptions
from hopfy.estimators.networks import (
    BiLSTM,
    RationaleNetwork,
    ShareOfWords,
    Temperature,
    WordPooling,
)
from hopfy.paper._processes import keeping_memory
from hopfy.paper.rationale._metrics import human_overlap, macro_f1, mean_span
from hopfy.paper.rationale._task import Task
from hopfy.paper.rationale._texts import Part, load
from hopfy.paper.rationale._training import estimator_of

__all__ = ["TASK", "TRIALS", "GrowingTransition", "Trial", "try_out"]

TASK = Task(
    "eraser_movies", 0.2, vectors="minilm", hidden=64, lr=1e-3, weight_decay=0.0, epochs=5,
    patience=5, longest=300, seeds=1, methods=(),
)  # fmt: skip
_AT_TEST = (0.0, 1.0, 4.0)
_STEPS = 50
"""Steps of an epoch: 1,600 reviews in batches of 32."""


@dataclass(frozen=True)
class Trial:
    """One way to train.

    Attributes:
        name: for the table.
        transition: the score of two selected neighbors in training, in units of the raw scores; None
            for k-subsets, which have none.
        temperature: 1 / beta in training.
        growing: the share of the training in which the transition grows from 0 to its value.
        learned: whether the transition is a parameter.
        normalized: whether a layer norm fixes the scale of the states before they are scored.
    """

    name: str
    transition: float | None = None
    temperature: float = 0.05
    growing: float = 0.0
    learned: bool = False
    normalized: bool = False


TRIALS = (
    Trial("k-subsets"),
    Trial("transition 0.001, as in the paper", 0.001),
    Trial("transition 1", 1.0),
    Trial("transition 0.1", 0.1),
    Trial("transition 0 to 1 over half of the training", 1.0, growing=0.5),
    Trial("learned transition", 0.1, learned=True),
    Trial("temperature 0.5, transition 1", 1.0, temperature=0.5),
    Trial("temperature 0.5, k-subsets", temperature=0.5),
    Trial("layer norm, transition 1", 1.0, normalized=True),
    Trial("layer norm, k-subsets", normalized=True),
)


class GrowingTransition(ShareOfWords):
    """Sequential k-subsets whose transition grows from 0 to ``final`` over so many training steps."""

    def __init__(self, share: float, beta: Temperature, final: float, steps: float) -> None:
        super().__init__(share, beta, 0.0)
        self.final, self.steps, self.taken = final, steps, 0

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        if self.training:
            self.taken += 1
            self.transition = self.final * min(1.0, self.taken / max(self.steps, 1.0))
        return super().forward(scores, mask)


class _Normalized(nn.Module):
    """Pooling of states that have zero mean and unit variance."""

    def __init__(self, pooling: nn.Module, size: int) -> None:
        super().__init__()
        self.norm, self.pooling = nn.LayerNorm(size), pooling

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.pooling(self.norm(x), mask)


def _select(trial: Trial, task: Task, beta: Temperature) -> ShareOfWords:
    if trial.growing and trial.transition is not None:
        steps = trial.growing * task.epochs * _STEPS
        return GrowingTransition(task.share, beta, trial.transition, steps)
    return ShareOfWords(task.share, beta, trial.transition, trial.learned)


def _builder(
    trial: Trial, task: Task, made: list[ShareOfWords]
) -> Callable[[nn.Embedding, int, RationaleOptions], RationaleNetwork]:
    """The paper's network with the trial's selection, which is also put into ``made``."""

    def build(embedding: nn.Embedding, outputs: int, options: RationaleOptions) -> RationaleNetwork:
        beta = Temperature(trial.temperature, options.test_temperature)
        made.append(_select(trial, task, beta))
        size = 2 * options.hidden
        pooling: nn.Module = WordPooling(size, omega=made[-1], head=options.hidden, beta=beta)
        return RationaleNetwork(
            nn.Sequential(embedding, nn.Dropout(options.word_dropout)),
            BiLSTM(embedding.embedding_dim, options.hidden),
            _Normalized(pooling, size) if trial.normalized else pooling,
            nn.Sequential(nn.Dropout(options.dropout), nn.Linear(options.hidden, outputs)),
        )

    return build


def try_out(trial: Trial, task: Task = TASK, seed: int = 0) -> dict[str, Any]:
    """What the validation texts say about a trial, by the transition at test time."""
    corpus = load(task, seed)
    made: list[ShareOfWords] = []
    model: Any = estimator_of(_builder(trial, task, made), task, corpus, seed)
    model.fit(
        corpus.training.texts,
        corpus.training.labels.numpy(),
        validation=(corpus.validation.texts, corpus.validation.labels.numpy()),
    )
    (select,) = made
    learned = None
    if select.transition is not None:
        learned = torch.as_tensor(select.transition).detach().item()
    found = {"its own": _judged(model, corpus.validation)}
    if select.transition is None:
        select.transition = 0.0
    for transition in _AT_TEST:
        select.at_test = transition
        found[f"{transition:g}"] = _judged(model, corpus.validation)
    return {"trial": asdict(trial), "seed": seed, "transition": learned, "at_test": found}


def _judged(model: RationaleClassifier, part: Part) -> dict[str, float]:
    found = model.rationale(part.texts)
    flags = []
    for each in found:
        own = np.zeros(len(each.tokens), bool)
        own[each.selected] = True
        flags.append(own)
    overlap = human_overlap(flags, part.spans or [])
    return {
        "f1": macro_f1([int(each.prediction) for each in found], part.labels.tolist()),
        "overlap": 0.0 if overlap is None else overlap.f1,
        "span": mean_span(flags),
    }


def _chosen(arguments: Sequence[str]) -> tuple[Sequence[Trial], int]:
    """The named trials, all of them without a name, and the seed."""
    known = {trial.name: trial for trial in TRIALS}
    seeds = [int(each) for each in arguments if each.isdigit()]
    names = [each for each in arguments if not each.isdigit()]
    return [known[name] for name in names] or TRIALS, seeds[-1] if seeds else 0


if __name__ == "__main__":
    trials, seed = _chosen(sys.argv[1:])
    with keeping_memory():
        for each in trials:
            print(json.dumps(try_out(each, seed=seed)), flush=True)
