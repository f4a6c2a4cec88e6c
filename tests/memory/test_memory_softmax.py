"""Softmax recalls stream over the patterns; a direct computation in float64 is the judge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hopfy import AssociativeMemory
from hopfy.network import Kind
from hopfy.search import SoftmaxRows


def _patterns(count: int = 2500, size: int = 6) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _lifted(patterns: Tensor, memory: AssociativeMemory) -> Tensor:
    """The rows of the network, from the formula of the lift."""
    radius = float(memory.network.memories.norm(dim=1).max())
    rest = (radius**2 - patterns.square().sum(1)).clamp_min(0).sqrt()
    return torch.cat([patterns, rest.unsqueeze(1)], 1)


def _judge(rows: Tensor, cue: Tensor, known: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Final mixture and weights of one cue, which knows some of the coordinates of ``rows``."""
    whole = bool(known[:-1].all())
    share = 1.0 if whole else known.numel() / int(known.sum())
    held = torch.where(known, cue, 0.0)
    scores = rows @ held + rows[:, ~known].square().sum(1) / 2
    state = torch.where(known, held, (beta * share * scores).softmax(0) @ rows)
    for _ in range(300):
        weights = (beta * (rows @ state)).softmax(0)
        mixed = weights @ rows
        after = mixed if whole else torch.where(known, state, mixed)
        if float((after - state).norm()) < 1e-13:
            break
        state = after
    return mixed, weights


@pytest.mark.parametrize("given", ["all", "some", "different"])
def test_recalls_are_those_of_the_formula(given: str) -> None:
    patterns, beta = _patterns(), 0.8
    labels = torch.arange(2500) % 7
    memory = AssociativeMemory("softmax", beta=beta).fit(patterns, labels)
    cues = patterns[:5] + 0.1
    mask = torch.ones_like(cues, dtype=torch.bool)
    if given == "some":
        mask[:, 4:] = False
    if given == "different":
        mask = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) > 0.3
        mask[:, 0] = True
    answer = memory.recall(cues, None if given == "all" else mask, max_steps=300)
    rows = _lifted(patterns, memory)
    for one in range(5):
        known = torch.cat([mask[one], torch.tensor([False])])
        cue = torch.cat([cues[one], cues.new_zeros(1)])
        mixed, weights = _judge(rows, cue, known, beta)
        assert torch.allclose(answer.patterns[one], mixed[:-1], atol=1e-8)
        assert int(answer.ids[one]) == int(weights.argmax())
        assert int(answer.size[one]) == 2500
        votes = torch.zeros(7, dtype=torch.float64).index_add_(0, labels, weights)
        assert int(answer.values[one]) == int(votes.argmax())
        ids, shares = answer.weights(one)
        assert torch.allclose(shares, weights[ids], atol=1e-9)
        assert "a mixture of 2500 stored patterns" in answer.describe(one)
    assert set(answer.kind) == {Kind.METASTABLE}


def test_values_are_averaged_or_voted_on() -> None:
    patterns, cues = _patterns(), _patterns(4)
    heights = torch.randn(2500, 2, 3, generator=torch.Generator().manual_seed(1))
    averaged = AssociativeMemory("softmax", beta=1.0).fit(patterns, heights).recall(cues)
    names = np.array([f"name {number % 1999}" for number in range(2500)])
    elected = AssociativeMemory("softmax", beta=1.0).fit(patterns, names).recall(cues)
    for one in range(4):
        ids, weights = averaged.weights(one)
        expected = (weights.reshape(-1, 1, 1) * heights[ids].double()).sum(0)
        assert torch.allclose(averaged.values[one].double(), expected, atol=1e-5)
        shares: dict[str, float] = {}
        for place, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            shares[names[place]] = shares.get(names[place], 0.0) + weight
        assert elected.values[one] == max(shares, key=lambda name: shares[name])


def test_the_answer_depends_neither_on_scratch_nor_on_other_cues() -> None:
    patterns, cues = _patterns(), _patterns(9) + 0.2
    mask = torch.rand(9, 6, generator=torch.Generator().manual_seed(2)) > 0.2
    whole = AssociativeMemory("softmax", beta=0.7).fit(patterns).recall(cues, mask)
    small = AssociativeMemory("softmax", beta=0.7, scratch=1).fit(patterns)
    again = small.recall(cues, mask)
    assert torch.allclose(whole.patterns, again.patterns, atol=1e-9)
    assert torch.equal(whole.ids, again.ids)
    assert torch.equal(whole.steps, again.steps)
    alone = [small.recall(cues[one], mask[one]).patterns for one in range(9)]
    assert torch.allclose(torch.stack(alone), whole.patterns, atol=1e-9)


def test_removed_patterns_take_no_part_and_nothing_is_copied() -> None:
    patterns, cues = _patterns(), _patterns(4)
    memory = AssociativeMemory("softmax", beta=0.9).fit(patterns, torch.arange(2500))
    memory.recall(cues)
    store = memory._store
    assert store is not None
    before = store.contents.rows.data_ptr()
    memory.remove(torch.arange(0, 400))
    answer = memory.recall(cues)
    assert store.contents.rows.data_ptr() == before
    assert len(store.contents.rows) == 2500  # rows stay where they are
    expected = AssociativeMemory("softmax", beta=0.9)
    expected.add(patterns[400:], torch.arange(400, 2500), ids=torch.arange(400, 2500))
    other = expected.recall(cues)
    assert torch.allclose(answer.patterns, other.patterns, atol=1e-9)
    assert torch.equal(answer.ids, other.ids)
    assert torch.equal(answer.values, other.values)
    assert answer.size.tolist() == [2100] * 4
    assert 0 not in answer.weights(0)[0].tolist()


def test_a_cue_that_decided_is_released() -> None:
    """At a large beta all weights but one underflow, and the whole network goes on from there."""
    patterns = 10 * torch.eye(6)
    memory = AssociativeMemory("softmax", beta=50.0).fit(patterns)
    answer = memory.recall(patterns[:2], torch.tensor([True, True, False, False, False, False]))
    assert answer.ids.tolist() == [0, 1]
    assert answer.size.tolist() == [1, 1]
    assert answer.steps.tolist() == [1, 1]
    assert torch.equal(answer.patterns, patterns[:2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_streamed_softmax_is_softmax(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    memories = torch.randn(5000, 4, generator=generator).to(dtype)
    alive = torch.rand(5000, generator=generator) > 0.3
    alive[:2048] = False  # whole blocks are gone
    queries = 30 * torch.randn(700, 4, generator=generator, dtype=torch.float64)
    bias = torch.randn(5000, generator=generator, dtype=torch.float64)
    beta = torch.rand(700, generator=generator, dtype=torch.float64) + 0.1
    rows = SoftmaxRows(memories, alive, queries, beta, bias)
    mixed = rows.mixed([memories])
    scores = beta.unsqueeze(1) * (queries @ memories.double().T + bias)
    scores[:, ~alive] = -torch.inf
    expected = scores.softmax(1)
    atol = 1e-9 if dtype is torch.float64 else 2e-4
    assert torch.allclose(mixed.mixtures[0].double(), expected @ memories.double(), atol=atol)
    parts = [part for _, part in rows.weights(mixed.log_total)]
    assert torch.allclose(torch.cat(parts, 1).double(), expected, atol=atol)
    assert torch.allclose(mixed.log_total[:, 0], scores.logsumexp(1), atol=20 * atol)
