"""Does the highlight alone carry the prediction? Sufficiency and comprehensiveness."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hopfy._warnings import NoKnownWordsWarning
from hopfy.estimators._text import as_texts

__all__ = ["Faithfulness", "faithfulness"]


class Faithfulness(NamedTuple):
    """Means over texts (DeYoung et al., 2020).

    Attributes:
        sufficiency: what the prediction loses when only the rationale is kept; low is good.
        comprehensiveness: what it loses when the rationale is taken out; high is good.
    """

    sufficiency: float
    comprehensiveness: float


def faithfulness(estimator: Any, texts: Sequence[Any]) -> Faithfulness:
    r"""How a fitted estimator's predictions change with its rationales alone, and without them.

    With the probability p of the class that is predicted for the whole text,

    .. math:: \text{sufficiency} = p(x) - p(\text{rationale}), \qquad
              \text{comprehensiveness} = p(x) - p(x \setminus \text{rationale}),

    averaged over the texts. For an estimator without classes it is how far the prediction moves.

    Args:
        estimator: has ``rationale(texts)``, whose answers have ``tokens`` and ``spans``, and
            ``predict_proba(texts)`` or else ``predict(texts)``: a fitted `RationaleClassifier` or
            `RationaleRegressor`, or anything else that does.
        texts: strings or lists of tokens; those without words are left out.
    """
    whole, alone, without = [], [], []
    given = [text for text in as_texts(texts) if len(text)]
    if not given:
        raise ValueError("expected at least one text with words, got none.")
    for text, found in zip(given, estimator.rationale(given), strict=True):
        keep = np.zeros(len(text), bool)
        for start, stop in found.spans:
            keep[start:stop] = True
        whole.append(list(text.tokens))
        alone.append([token for token, kept in zip(text.tokens, keep, strict=True) if kept])
        without.append([token for token, kept in zip(text.tokens, keep, strict=True) if not kept])
    return Faithfulness(*_losses(estimator, whole, alone, without))


def _losses(estimator: Any, whole: list[Any], *changed: list[Any]) -> list[float]:
    probable = hasattr(estimator, "predict_proba")
    predict = estimator.predict_proba if probable else estimator.predict
    before = np.asarray(predict(whole))
    with warnings.catch_warnings():
        # Texts that lose all their words are what this is about.
        warnings.simplefilter("ignore", NoKnownWordsWarning)
        after = [np.asarray(predict(texts)) for texts in changed]
    if not probable:
        return [float(np.abs(before - each).mean()) for each in after]
    rows, classes = np.arange(len(before)), before.argmax(1)
    return [float((before - each)[rows, classes].mean()) for each in after]
