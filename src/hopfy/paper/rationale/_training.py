"""One method on one task: fit the estimator, test it once, look at what it selects."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hopfy.estimators import (
    ExponentialDecay,
    NoKnownWordsWarning,
    Rationale,
    RationaleClassifier,
    RationaleModule,
    RationaleRegressor,
    Selection,
    Training,
    Words,
    WordVectors,
    faithfulness,
)
from hopfy.paper import data
from hopfy.paper.rationale._metrics import (
    Flags,
    human_overlap,
    macro_f1,
    mean_span,
    spans_of,
)
from hopfy.paper.rationale._reference import read_in_sequence, reference_network
from hopfy.paper.rationale._task import Task
from hopfy.paper.rationale._texts import PLANTED, Corpus, Part, load

__all__ = ["estimator_of", "fitted", "measure"]

_SHOWN = 3
"""Test texts whose highlights are kept."""
_EVERY_WORD = ("softmax",)
"""Methods that weigh every word: their rationale is as many words as the others may take."""
_NO_RATIONALE = ("BiLSTM",)
_LEARNED_SIZE = 16
_PIECES, _GLOVE_100D = "minilm", "glove_100d"
_EVERY_VECTOR = 400_000
"""All words that have vectors stay in the model: test texts may use any."""

Estimator = RationaleClassifier | RationaleRegressor


def fitted(method: str, task: Task, corpus: Corpus, seed: int) -> Estimator:
    """An estimator with the task's settings, fitted; the validation texts decide when to stop."""
    build = reference_network(method) if task.as_reference_code else method
    training, validation = corpus.training, corpus.validation
    held_out = (validation.texts, validation.labels.numpy())
    estimator = estimator_of(build, task, corpus, seed)
    return estimator.fit(training.texts, training.labels.numpy(), validation=held_out)


def estimator_of(
    method: str | Callable[..., RationaleModule], task: Task, corpus: Corpus, seed: int
) -> Estimator:
    """An estimator with the task's settings, not fitted."""
    settings: dict[str, Any] = {
        "method": method,
        "share": task.share,
        "selection": Selection(
            transition=task.transition,
            test_transition=task.test_transition,
            temperature=task.temperature,
        ),
        "vectors": _vectors(task, corpus),
        "words": Words(min_count=1, keep_words=_EVERY_VECTOR),
        "hidden": task.hidden,
        "word_dropout": task.word_dropout,
        "dropout": task.dropout,
        "training": Training(
            lr=task.lr,
            weight_decay=task.weight_decay,
            schedule=ExponentialDecay(task.decay) if task.decay else "auto",
            max_epochs=task.epochs,
            min_epochs=task.min_epochs,
            patience=task.patience,
        ),
        "random_state": seed,
    }
    if corpus.numbers:
        return RationaleRegressor(**settings, bounds=(0.0, 1.0))
    return RationaleClassifier(**settings)


def _vectors(task: Task, corpus: Corpus) -> Any:
    """What the estimator takes its word vectors from."""
    if task.data == PLANTED:
        return _LEARNED_SIZE
    return _side_by_side(task.vectors, corpus.words)


@lru_cache(maxsize=1)
def _side_by_side(names: str, words: tuple[str, ...]) -> Any:
    """Kept for the next cell, which mostly has the same texts."""
    sources = [_source(name, words) for name in names.split("+")]
    return sources[0] if len(sources) == 1 else sources


def _source(name: str, words: tuple[str, ...]) -> str | WordVectors:
    if name == _PIECES:
        return WordVectors.from_word_pieces(words)
    return WordVectors.from_file(data.glove_100d(), words) if name == _GLOVE_100D else name


class _Strongest:
    """An estimator whose rationale are the words of the largest weights."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self.predict = estimator.predict
        if isinstance(estimator, RationaleClassifier):
            self.predict_proba = estimator.predict_proba

    def rationale(self, texts: Sequence[Any]) -> list[Rationale]:
        return [found.strongest() for found in self._estimator.rationale(texts)]


def measure(method: str, task: Task, seed: int) -> dict[str, Any]:
    """Everything that is reported about one method on one task, as JSON-able data.

    Where sequential k-subsets has no network of its own, that of k-subsets is measured with it ``also``.
    """
    corpus = load(task, seed)
    with warnings.catch_warnings():
        # Texts without a known word are part of the data; the estimators say what they do with them.
        warnings.simplefilter("ignore", NoKnownWordsWarning)
        begun = time.perf_counter()
        estimator = fitted(method, task, corpus, seed)
        words = sum(len(text) for text in corpus.training.texts)
        epochs = [epoch["dur"] for epoch in estimator.history_]
        known = {
            "texts": [len(p.texts) for p in (corpus.training, corpus.validation, corpus.test)],
            "epochs": len(epochs),
            "words_per_second": words * len(epochs) / sum(epochs),
            "training_seconds": time.perf_counter() - begun,
            "history": [_numbers(epoch) for epoch in estimator.history_],
        }
        result = known | _tested(estimator, task, corpus.test)
        if method == "k-subsets" and not task.own_network:
            reader = _in_sequence(estimator, task)
            result["also"] = {"sequential k-subsets": known | _tested(reader, task, corpus.test)}
    return result


def _in_sequence(estimator: Estimator, task: Task) -> Estimator:
    """The same network, from whose scores sequential k-subsets selects."""
    if task.as_reference_code:
        return read_in_sequence(estimator, task.test_transition)
    return estimator.with_transition(task.test_transition)


def _tested(estimator: Estimator, task: Task, test: Part) -> dict[str, Any]:
    """How well it predicts, and which words it selects."""
    found: list[Rationale] = estimator.rationale(test.texts)
    result: dict[str, Any] = {"score": _score([each.prediction for each in found], test)}
    if estimator.method in _NO_RATIONALE:
        return result
    reader: Any = estimator
    if estimator.method in _EVERY_WORD:
        reader = _Strongest(estimator)
        result["fractional"] = _fractional(found)
        found = [each.strongest() for each in found]
    flags = [_flags(each) for each in found]
    result = _described(found, flags) | result
    result |= faithfulness(reader, test.texts[: task.judged])._asdict()
    if test.spans is not None:
        overlap = human_overlap(flags, test.spans)
        result["overlap"] = None if overlap is None else overlap._asdict()
        result["examples"] = _examples(test, flags)
    return result


def _score(predictions: Sequence[Any], test: Part) -> float:
    """F1 over the classes, or the mean squared error."""
    if test.labels.is_floating_point():
        return float(np.mean(np.square(np.array(predictions) - test.labels.numpy())))
    return macro_f1([int(each) for each in predictions], test.labels.tolist())


def _flags(found: Rationale) -> Flags:
    flags = np.zeros(len(found.tokens), bool)
    flags[found.selected] = True
    return flags


def _numbers(epoch: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in epoch.items()}


def _described(found: Sequence[Rationale], flags: Sequence[Flags]) -> dict[str, float]:
    """How much is selected, in how long spans, and how much of it only in part."""
    return {
        "selected": float(np.mean([float(own.mean()) for own in flags if len(own)])),
        "fractional": _fractional(found),
        "span": mean_span(flags),
    }


def _fractional(found: Sequence[Rationale]) -> float:
    return float(np.mean([each.fractional / len(each.tokens) for each in found if each.tokens]))


def _examples(part: Part, flags: Sequence[Flags]) -> list[dict[str, Any]]:
    """The first test texts of middling length, to be drawn."""
    spans = part.spans or []
    order = [n for n in range(len(part.texts)) if 12 <= len(part.texts[n]) <= 500 and spans[n]]
    return [
        {
            "number": n,
            "tokens": list(part.texts[n].tokens),
            "human": [list(span) for span in spans[n]],
            "selected": [list(span) for span in spans_of(flags[n])],
        }
        for n in order[:_SHOWN]
    ]
