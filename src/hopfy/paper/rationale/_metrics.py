"""How good a rationale is: as a prediction, beside a person's, and as something to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["MeanOverlap", "human_overlap", "macro_f1", "mean_span", "spans_of"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class MeanOverlap(NamedTuple):
    """Token precision and recall, each averaged over the texts, and F1 of the two averages."""

    precision: float
    recall: float
    f1: float


def macro_f1(predicted: Sequence[int], labels: Sequence[int]) -> float:
    """The mean over the classes of :math:`2 TP / (2 TP + FP + FN)`; a class that is never predicted counts 0.

    >>> round(macro_f1([0, 0, 1, 1], [0, 1, 1, 1]), 4)
    0.7333
    """
    found, true = np.asarray(predicted), np.asarray(labels)
    scores = []
    for label in np.union1d(found, true):
        both = np.sum((found == label) & (true == label))
        scores.append(2 * both / (np.sum(found == label) + np.sum(true == label)))
    return float(np.mean(scores))


def human_overlap(
    selected: Sequence[Flags], spans: Sequence[Sequence[tuple[int, int]]]
) -> MeanOverlap | None:
    """Selected words of every text against the spans that a person marked in it.

    Texts without a marked word are skipped (ERASER has marks of no words); None if there are no
    others. A text in which nothing is selected has precision and recall 0. Words beyond the end of
    ``selected`` were not read: what a person marked there is missed.

    >>> human_overlap([np.array([True, True, False, False])], [[(1, 3)]])
    MeanOverlap(precision=0.5, recall=0.5, f1=0.5)
    """
    precisions, recalls = [], []
    for own, marks in zip(selected, spans, strict=True):
        if not any(stop > start for start, stop in marks):
            continue
        human = np.zeros(max(len(own), max(stop for _, stop in marks)), bool)
        for start, stop in marks:
            human[start:stop] = True
        common = int(np.sum(human[: len(own)] & own))
        precisions.append(common / max(1, int(own.sum())))
        recalls.append(common / int(human.sum()))
    if not precisions:
        return None
    precision, recall = float(np.mean(precisions)), float(np.mean(recalls))
    total = precision + recall
    return MeanOverlap(precision, recall, 2 * precision * recall / total if total else 0.0)


def spans_of(selected: Flags) -> list[tuple[int, int]]:
    """Runs of selected words: (first, the one after the last).

    >>> spans_of(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(selected.astype(np.int8), prepend=0, append=0))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def mean_span(selected: Sequence[Flags]) -> float:
    """Words in a run of selected ones: the mean of each text, averaged over those with any.

    >>> mean_span([np.array([True, False, True, True]), np.array([True])])
    1.25
    """
    means = [float(own.sum()) / len(spans_of(own)) for own in selected if own.any()]
    return float(np.mean(means)) if means else 0.0
