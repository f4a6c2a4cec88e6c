"""What the report says about Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopfy.paper.mil._claims import claims, comparison

__all__ = ["caption", "explanation"]

_TASK = (
    "A bag is positive if it holds K or more nines; training sees the bags' labels only. Pooling by "
    "k-subsets adds up exactly k instances, so with k = K it can tell whether all of them are "
    "nines; softmax sees the share of nines, which says less when bags have different lengths. "
)
_PROTOCOL = (
    "Every number is the mean over the seeds; a run looks at its test bags once, with the weights "
    "of its best validation epoch, and where a profile searches, validation on the first seed "
    "decides. "
)
_REASONS = "The page docs/reproduce.md says what was tried to explain the differences. "
_TIES = (
    "A method is best if its mean is the largest; the p-values are those of McNemar's exact test on "
    "the test bags of all seeds."
)


def caption(results: Mapping[str, Any]) -> str:
    """Below the picture."""
    text = (
        "Mean and deviation over the seeds, in percent: accuracy for bags of digits, area under "
        "the ROC curve for the animals. The best of a column is framed. "
    )
    if results["source"] == "mnist":
        text += "Small: the paper's numbers; it has none for the last three rows."
    return text.strip()


def explanation(results: Mapping[str, Any]) -> str:
    """Above it."""
    if results["source"] != "mnist":
        return (
            _TASK + "Here 8 x 8 digits stand in for MNIST, with a small network of two linear "
            "layers: the order of the methods can be seen, the numbers are not the paper's. "
            + _TIES
        )
    return _TASK + _PROTOCOL + _agreement(results) + _TIES


def _agreement(results: Mapping[str, Any]) -> str:
    rows = comparison(results)
    judged = [row for row in rows if row.agrees is not None]
    outside = [row for row in judged if row.agrees is False]
    held = claims(results)
    text = (
        f"{len(judged) - len(outside)} of {len(judged)} means lie within 2 points (animals: 3) of "
        f"the paper's, and {sum(row.ours == 1 for row in held)} of its {len(held)} claims hold. "
    )
    above = [row for row in outside if row.ours > (row.paper or 0)]
    below = [row for row in outside if row not in above]
    if outside:
        text += (
            f"Of the {len(outside)} others {len(above)} are higher than the paper's and "
            f"{len(below)} lower. {_REASONS}"
        )
    return text
