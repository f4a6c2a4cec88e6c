"""Many shards in one process."""

from __future__ import annotations

import math

import pytest
import torch

import hopfy
from hopfy.distributed import Simulation, simulate
from hopfy.search import ExactIndex
from hopfy.structures import KSubsets

OMEGAS = [hopfy.Tsallis(1.5), hopfy.Norm(5.0), hopfy.SparseMAP(KSubsets(3))]


def _run(omega: hopfy.Omega, shards: int, count: int = 300) -> tuple[Simulation, torch.Tensor]:
    memories = torch.nn.functional.normalize(torch.randn(count, 16))
    queries = memories[:5] + 0.1 * torch.randn(5, 16)
    whole = ExactIndex(memories).weights(queries, omega, 8.0)
    return simulate(memories, queries, omega, 8.0, shards), whole


@pytest.mark.parametrize("omega", OMEGAS, ids=str)
@pytest.mark.parametrize("shards", [1, 2, 7, 64, 400])
def test_all_gather_and_tree_give_the_answer_of_one_index(omega, shards) -> None:
    run, whole = _run(omega, shards)
    for weights in (run.weights, run.tree_weights):
        assert torch.equal(weights.offsets, whole.offsets)
        assert torch.equal(weights.indices, whole.indices)
        assert torch.equal(weights.values, whole.values)
    assert run.candidates <= shards * run.most
    assert run.tree_rounds == math.ceil(math.log2(shards))


@pytest.mark.slow
@pytest.mark.parametrize("shards", [64, 256, 1024])
def test_the_tree_sends_less_than_an_all_gather_of_many_shards(shards: int) -> None:
    run, _ = _run(hopfy.Tsallis(2.0), shards, 4096)
    assert run.tree_bytes < run.all_gather_bytes
    assert run.tree_link_bytes <= run.tree_bytes


def test_plans_count_latency_and_bytes() -> None:
    run, _ = _run(hopfy.Tsallis(2.0), 64)
    for how, rounds in (("all-gather", 12), ("tree", 18)):
        slow, slower = (run.planned_seconds(how, latency=each) for each in (0.0, 1.0))
        assert slower - slow == pytest.approx(rounds)
        assert run.planned_seconds(how, bytes_per_second=1e3) > run.planned_seconds(how)
    with pytest.raises(ValueError, match="'tree'"):
        run.planned_seconds("ring")


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="knows its reach"):
        simulate(torch.eye(3), torch.eye(3), hopfy.Shannon(), 1.0, 2)
    with pytest.raises(ValueError, match="shards"):
        simulate(torch.eye(3), torch.eye(3), hopfy.Tsallis(2.0), 1.0, 0)
