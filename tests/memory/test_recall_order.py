"""Free and sequential recall: what comes back, in which order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hopfy
from hopfy.memory import Fatigue, RecallOrder, UseUp


def _memory(count: int = 24, size: int = 40, **options: object) -> hopfy.AssociativeMemory:
    generator = torch.Generator().manual_seed(count)
    patterns = torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=-1)
    return hopfy.AssociativeMemory("1.5-entmax", **options).fit(patterns)  # type: ignore[arg-type]


@pytest.mark.parametrize("inhibition", [Fatigue(), UseUp()], ids=["fatigue", "use up"])
@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_free_recall_finds_every_memory_once(compare: str, inhibition: object) -> None:
    memory = _memory(compare=compare, beta=1e4)
    cues = torch.stack([memory[3].pattern, memory[7].pattern])
    found = memory.free_recall(cues, inhibition=inhibition)
    assert found.ids.shape == (2, 24)
    assert found.ids[:, 0].tolist() == [3, 7]
    for row in found.ids:
        assert sorted(row.tolist()) == list(range(24))
    assert (found.distinct == 1).all()
    assert (found.share > 0.99).all()


def test_memories_that_come_back_together_tire_together() -> None:
    """At a beta that cannot tell them apart memories mix, and fewer different ones come back."""
    memory = _memory(beta=0.1)
    found = memory.free_recall(memory[3].pattern)
    assert found.distinct < 1
    assert (found.share < 0.5).all()


def test_the_nearest_comes_first() -> None:
    places = torch.tensor([[0.0], [10.0], [1.0], [30.0], [12.0]])
    memory = hopfy.AssociativeMemory(beta=50.0).fit(places)
    assert memory.free_recall(torch.tensor([0.2]), 5).ids.tolist() == [0, 2, 1, 4, 3]


def test_steps_are_prefixes_of_each_other() -> None:
    memory = _memory(beta=1e4)
    cue = memory[5].pattern
    whole = memory.free_recall(cue).ids
    assert memory.free_recall(cue, 6).ids.tolist() == whole[:6].tolist()


@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_sequential_recall_follows_the_order_of_storage(compare: str) -> None:
    memory = _memory(compare=compare, beta=1e4)
    cue = memory[0].pattern.clone()
    cue[:8] *= -1
    found = memory.sequential_recall(cue)
    assert found.ids.tolist() == list(range(24))
    assert found.agreement(memory.ids) == 1
    assert found.distinct == 1


def test_ids_are_those_of_the_store_and_arrays_of_the_kind_of_the_cue() -> None:
    patterns = np.eye(4, dtype=np.float32)
    memory = hopfy.AssociativeMemory(beta=20.0)
    memory.add(patterns, ids=[10, 20, 30, 40])
    found = memory.sequential_recall(patterns[0])
    assert isinstance(found.ids, np.ndarray)
    assert found.ids.tolist() == [10, 20, 30, 40]
    assert memory.free_recall(patterns[2], 1).ids.tolist() == [30]


def test_agreement_is_the_levenshtein_distance() -> None:
    order = RecallOrder(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0], [3, 2, 1, 0]]), torch.ones(3, 4))
    assert order.agreement([0, 1, 2, 3]).tolist() == [1.0, 0.5, 0.0]
    assert RecallOrder(torch.tensor([1, 1, 2]), torch.ones(3)).distinct == pytest.approx(2 / 3)
    assert "75%" in repr(RecallOrder(torch.tensor([1, 1, 2, 3]), torch.ones(4)))


def test_single_memories_and_bad_input() -> None:
    single = hopfy.AssociativeMemory(beta=1.0).fit(torch.ones(1, 3))
    assert single.free_recall(torch.ones(3)).ids.tolist() == [0]
    assert single.sequential_recall(torch.ones(3)).ids.tolist() == [0]
    memory = _memory(beta=1e4)
    cue = memory[0].pattern
    with pytest.raises(ValueError, match="steps from 1 to the 24 patterns, got 25"):
        memory.free_recall(cue, 25)
    with pytest.raises(ValueError, match="settle to be an integer >= 0"):
        memory.free_recall(cue, settle=-1)
    with pytest.raises(TypeError, match="inhibition such as Fatigue"):
        memory.free_recall(cue, inhibition="fatigue")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="inhibition Fatigue"):
        memory.sequential_recall(cue, inhibition=UseUp())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        memory.free_recall(cue * torch.nan)
    with pytest.raises(ValueError, match="rate to be at most 1"):
        Fatigue(rate=2.0)
    with pytest.raises(ValueError, match="coordinates"):
        memory.free_recall(cue[:3])


@pytest.mark.parametrize("compare", ["distance", "dot"])
@pytest.mark.parametrize("scale", [2.0**-30, 1.0, 2.0**20])
def test_the_order_does_not_depend_on_the_unit(compare: str, scale: float) -> None:
    """Patterns in another unit, with beta in its inverse square: the same scores, the same order."""
    plain, other = _memory(compare=compare, beta=1e4), None
    patterns = torch.stack([plain[n].pattern for n in range(24)])
    other = hopfy.AssociativeMemory("1.5-entmax", 1e4 / scale**2, compare=compare)
    other.fit(scale * patterns)
    cue = patterns[3] + 0.05
    free, sequential = plain.free_recall(cue), plain.sequential_recall(cue)
    assert free.distinct == 1
    assert torch.equal(other.free_recall(scale * cue).ids, free.ids)
    assert torch.equal(other.sequential_recall(scale * cue).ids, sequential.ids)


def test_raw_pixels_come_back_once() -> None:
    """Scores of 1e7, larger than a fatigue of fixed size."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (32, 784), generator=generator).float()
    memory = hopfy.AssociativeMemory("sparsemax", beta=1.0).fit(pixels)
    assert memory.free_recall(pixels[:3]).distinct.tolist() == [1, 1, 1]
    assert memory.sequential_recall(pixels[0]).ids.tolist() == list(range(32))


def test_fatigue_is_its_formula() -> None:
    """p = y(beta (X q - gamma a)), a <- l p + (1 - l) a, q <- X'p, written out."""
    patterns = torch.randn(6, 4, dtype=torch.float64)
    fatigue = Fatigue(strength=3.0, rate=0.4)
    memory = hopfy.AssociativeMemory("sparsemax", 0.5, compare="dot").fit(patterns)
    found = memory.free_recall(patterns[0], inhibition=fatigue, settle=0)
    state, tired, ids = patterns[0], torch.zeros(6, dtype=torch.float64), []
    for _ in range(6):
        weights = hopfy.functional.sparsemax(0.5 * (patterns @ state - 3.0 * tired))
        tired = 0.4 * weights + 0.6 * tired
        state = weights @ patterns
        ids.append(int(weights.argmax()))
    assert found.ids.tolist() == ids
