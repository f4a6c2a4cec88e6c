"""Parts of a problem that are solved alone and merged by their supports."""

from __future__ import annotations

import pytest
import torch

from hopfy import Norm, Shannon, SparseMAP, Tsallis
from hopfy.search import SparseRows, weights_on
from hopfy.structures import AtMostK, KSubsets, SequentialKSubsets

MERGING = [
    Shannon(),
    *(Tsallis(alpha) for alpha in (1.1, 1.5, 2.0, 3.0, float("inf"))),
    *(Norm(alpha) for alpha in (1.2, 2.0, 5.0, float("inf"))),
    *(SparseMAP(KSubsets(k)) for k in (1, 2.5, 3, 20)),
    *(SparseMAP(AtMostK(k)) for k in (1, 3)),
]


@pytest.mark.parametrize("omega", MERGING, ids=str)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_a_weight_on_the_whole_is_a_weight_on_every_part_that_contains_it(omega, scale) -> None:
    assert omega.merges_by_support
    scores = scale * torch.randn(20, 24, dtype=torch.float64) - 0.3
    whole = omega(scores)
    for part in torch.split(torch.randperm(24), [1, 2, 9, 12]):
        alone = omega.clip(len(part))(scores[:, part])
        assert not bool(((whole[:, part] > 1e-12) & (alone == 0)).any())


@pytest.mark.parametrize("omega", MERGING, ids=str)
def test_the_small_problem_has_the_weights_of_the_whole(omega) -> None:
    scores = torch.randn(20, 24, dtype=torch.float64)
    merged = torch.zeros_like(scores, dtype=torch.bool)
    for part in torch.split(torch.arange(24), [1, 2, 9, 12]):
        merged[:, part] = omega.clip(len(part))(scores[:, part]) > 0
    row, column = merged.nonzero(as_tuple=True)
    offsets = torch.nn.functional.pad(merged.sum(1).cumsum(0), (1, 0))
    small = weights_on(SparseRows(offsets, column, scores[row, column], 24), omega)
    torch.testing.assert_close(small.dense(), omega(scores), rtol=1e-9, atol=1e-10)


def test_neighbors_that_count_cannot_be_merged() -> None:
    assert not SparseMAP(SequentialKSubsets(2, transition=1.0)).merges_by_support
