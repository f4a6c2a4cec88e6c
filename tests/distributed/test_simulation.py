"""Many shards in one process."""

from __future__ import annotations

import pytest
import torch

import hopfy
from hopfy.distributed import simulate
from hopfy.search import ExactIndex
from hopfy.structures import KSubsets


@pytest.mark.parametrize(
    "omega", [hopfy.Tsallis(1.5), hopfy.Norm(5.0), hopfy.SparseMAP(KSubsets(3))]
)
@pytest.mark.parametrize("shards", [1, 7, 64])
def test_the_answer_does_not_depend_on_the_number_of_shards(omega, shards) -> None:
    memories = torch.nn.functional.normalize(torch.randn(300, 16))
    queries = memories[:5] + 0.1 * torch.randn(5, 16)
    run = simulate(memories, queries, omega, 8.0, shards)
    whole = ExactIndex(memories).weights(queries, omega, 8.0)
    assert torch.equal(run.weights.indices, whole.indices)
    assert torch.equal(run.weights.values, whole.values)
    assert run.candidates <= shards * run.most


def test_a_map_that_cannot_be_merged_is_refused() -> None:
    with pytest.raises(ValueError, match="knows its reach"):
        simulate(torch.eye(3), torch.eye(3), hopfy.Shannon(), 1.0, 2)
