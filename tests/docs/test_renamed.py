"""Every name that was renamed is refused with an error that says the new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hopfy
import hopfy.plot
from hopfy import functional as F
from hopfy.structures import KSubsets

SCORES = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NETWORK = hopfy.HopfieldNetwork(torch.eye(2))


def _recalled() -> Any:
    return hopfy.AssociativeMemory().fit(torch.eye(3)).recall(torch.eye(3))


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda: hopfy.nn.KSubsets, AttributeError, "hopfy.nn.KSubsetsMap"),
        (lambda: hopfy.nn.Hopfield(8, normalise=True), TypeError, "normalize"),
        (lambda: F.Status, AttributeError, "hopfy.functional.SparseMAPStatus"),
        (lambda: F.sparsemap(SCORES, KSubsets(2), max_iter=3), TypeError, "max_steps"),
        (lambda: F.sparsemap_solution(SCORES, KSubsets(2), max_iter=3), TypeError, "max_steps"),
        (lambda: F.sparsemap_solution(SCORES, KSubsets(2)).iterations, AttributeError, "steps"),
        (lambda: _recalled().kinds, AttributeError, "Recall.kind "),
        (lambda: _recalled().sizes, AttributeError, "Recall.size "),
        (lambda: hopfy.AssociativeMemory().recall(SCORES, known=None), TypeError, "mask"),
        (lambda: hopfy.AssociativeMemory().predict(SCORES, known=None), TypeError, "mask"),
        (lambda: hopfy.plot.basins(NETWORK, tolerance=0.1), TypeError, "tol="),
        (lambda: hopfy.demo, AttributeError, "hopfy.paper.demo"),
    ],
)
def test_an_old_name_says_the_new_one(
    use: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        use()


@pytest.mark.parametrize("owner", [hopfy.nn, F, _recalled()], ids=["nn", "functional", "Recall"])
def test_other_missing_names_are_missing_as_usual(owner: object) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        owner.nothing  # noqa: B018
