"""Laws of sharded memories, run by every process; the judge is one memory with all patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hopfy
from hopfy.distributed import ShardedMemory
from judges.sharded import part

SIZE = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "sparsemax, auto": {"omega": "sparsemax", "beta": "auto"},
    "1.5-entmax, warm": {"omega": "1.5-entmax", "beta": 0.3},
    "5-normmax, dot": {"omega": hopfy.Norm(5.0), "beta": 2.0, "compare": "dot"},
    "sparsemax, dot, auto": {"omega": "sparsemax", "beta": "auto", "compare": "dot"},
    "softmax": {"omega": hopfy.Shannon(), "beta": 1.5},
}


def drawn(count: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, SIZE, generator=generator, dtype=torch.float64).to(dtype)


def counts_of(total: int, size: int, kind: str) -> list[int]:
    """How many of ``total`` patterns each process passes with layout='sharded'."""
    if size == 1:
        return [total]
    if kind == "uneven":
        return [1] * (size - 1) + [total - size + 1]
    return [0] * (size - 1) + [total]  # all on the last one


class Pair:
    """A sharded memory and one that holds everything, told the same."""

    def __init__(self, rank: int, size: int, settings: dict[str, Any]) -> None:
        self.rank, self.size = rank, size
        self.ours = ShardedMemory(**settings, timeout=60)
        self.judge = hopfy.AssociativeMemory(**settings)

    def add(self, patterns: Any, values: Any = None, ids: Any = None) -> None:
        given = self.ours.add(patterns, values, ids)
        wanted = self.judge.add(patterns, values, ids)
        assert torch.equal(torch.as_tensor(given), torch.as_tensor(wanted))

    def add_sharded(self, patterns: Tensor, values: Any, kind: str) -> None:
        counts = counts_of(len(patterns), self.size, kind)
        some = slice(sum(counts[: self.rank]), sum(counts[: self.rank + 1]))
        own = None if values is None else values[some]
        given = self.ours.add(patterns[some], own, layout="sharded")
        assert torch.equal(given, self.judge.add(patterns, values)[some])

    def remove(self, ids: list[int]) -> None:
        self.ours.remove(ids)
        self.judge.remove(ids)

    def same_facts(self) -> None:
        assert len(self.ours) == len(self.judge) == sum(self.ours.counts)
        assert torch.equal(self.ours.ids, self.judge.ids)

    def same_answers(self, cues: Any, known: Any = None, **options: Any) -> None:
        same_recall(
            self.ours.recall(cues, known, **options), self.judge.recall(cues, known, **options)
        )

    def same_beta(self) -> None:
        np.testing.assert_allclose(self.ours.beta, self.judge.beta, rtol=1e-6)
        assert self.ours.uncertifiable == self.judge.uncertifiable


def same_recall(ours: hopfy.memory.Recall, judge: hopfy.memory.Recall) -> None:
    assert ours.kind == judge.kind
    for name in ("ids", "certified", "size", "steps"):
        a, b = (torch.as_tensor(getattr(each, name)) for each in (ours, judge))
        assert torch.equal(a, b), f"{name}: {a.tolist()} instead of {b.tolist()}"
    np.testing.assert_allclose(ours.patterns, judge.patterns, rtol=1e-5, atol=1e-6)
    exact = torch.as_tensor(judge.size) == 1
    assert torch.equal(
        torch.as_tensor(ours.patterns)[exact], torch.as_tensor(judge.patterns)[exact]
    )
    assert (ours.values is None) == (judge.values is None)
    if judge.values is not None and not isinstance(judge.values, Tensor):
        assert np.array_equal(ours.values, judge.values)
    elif judge.values is not None:
        torch.testing.assert_close(ours.values, judge.values)
    for row in range(len(judge)):
        assert ours.describe(row) == judge.describe(row)
        assert torch.equal(
            torch.as_tensor(ours.weights(row)[0]), torch.as_tensor(judge.weights(row)[0])
        )


def cues_of(patterns: Tensor, seed: int = 9) -> Tensor:
    """Damaged patterns, a tie, a stored pattern and something far away."""
    noise = drawn(len(patterns), seed, patterns.dtype)
    between = (patterns[0] + patterns[1]) / 2
    extra = torch.stack([between, patterns[2], 5 * noise[0]])
    return torch.cat([patterns[:6] + 0.6 * noise[:6], extra])


def tells_the_same_as_one_memory(
    rank: int, size: int, name: str, kind: str, dtype: torch.dtype
) -> None:
    """A life of a memory: patterns come in many ways, go, and are recalled after every change."""
    pair = Pair(rank, size, SETTINGS[name])
    first = drawn(7, 1, dtype)
    cues = cues_of(first)
    known = torch.rand(cues.shape, generator=torch.Generator().manual_seed(4)) > 0.4
    pair.add(first, torch.arange(7))
    pair.same_facts()
    pair.same_answers(cues)
    pair.add_sharded(drawn(9, 2, dtype), torch.arange(9) % 3, kind)
    pair.add(3 * drawn(1, 3, dtype), torch.tensor([5]), [100])  # a larger sphere, an id of its own
    pair.add(first[3:4].clone(), torch.tensor([6]))  # stored twice
    pair.same_facts()
    pair.same_answers(cues)
    pair.same_answers(cues, known)
    pair.same_answers(cues, known[0])
    pair.same_answers(cues[0].numpy())
    pair.remove([0, 100, 8])
    pair.same_facts()
    pair.same_answers(cues, known, max_steps=3)
    if name != "softmax":
        pair.same_beta()
    pair.add(drawn(2, 6, dtype), torch.tensor([1, 2]))
    pair.same_answers(cues)
    for k in (1, 4, len(pair.judge)):
        a, b = pair.ours.neighbors(cues, k), pair.judge.neighbors(cues, k)
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.scores, b.scores)
    pair.remove(pair.judge.ids.tolist())
    assert len(pair.ours) == 0
    pair.add(first[:1].numpy(), np.array([1]))
    pair.same_answers(first[0].numpy())


def is_shared_out_evenly(rank: int, size: int) -> None:
    memory = ShardedMemory(beta=1.0, timeout=60)
    for count in (1, 1, 1, 5, 0, 2):
        memory.add(drawn(count, count))
        assert max(memory.counts) - min(memory.counts) <= 1
    memory.add(drawn(3 if rank == size - 1 else 0, 4), layout="sharded")
    full = memory.counts[-1]
    memory.add(drawn(1, 8))
    assert memory.counts[-1] == full + (size == 1)  # the next one goes elsewhere
    assert sum(memory.counts) == len(memory) == 14


def keeps_values_of_every_kind(rank: int, size: int) -> None:
    patterns = drawn(6, 1)
    kinds: list[Any] = [
        ["a", "b", "a", "c", "b", "d"],
        [{"n": i % 2} for i in range(6)],
        np.array([f"2026-01-0{1 + i % 3}" for i in range(6)], dtype="datetime64[D]"),
        torch.arange(12.0, dtype=torch.float64).reshape(6, 2),
        None,
    ]
    for values in kinds:
        pair = Pair(rank, size, {"beta": 0.7})
        pair.add(patterns[:2], None if values is None else values[:2])
        pair.add_sharded(patterns[2:], None if values is None else values[2:], "uneven")
        pair.same_answers(cues_of(patterns))
        pair.same_answers(np.ma.masked_array(patterns.numpy(), patterns.numpy() > 0.5))
        ours, wanted = pair.ours[4], pair.judge[4]
        assert torch.equal(ours.pattern, wanted.pattern)
        same = torch.equal if isinstance(wanted.value, Tensor) else lambda a, b: a == b
        assert same(ours.value, wanted.value)


def answers_sharded_cues(rank: int, size: int) -> None:
    patterns = drawn(11, 1)
    pair = Pair(rank, size, {"beta": "auto"})
    pair.add(patterns, [f"word {i % 4}" for i in range(11)])
    cues = cues_of(patterns)
    known = cues < 1.0
    counts = [2 * r for r in range(size - 1)]
    counts.append(len(cues) - sum(counts))
    mine, seen = part(cues, rank, counts), part(known, rank, counts)
    same_recall(pair.ours.recall(mine, layout="sharded"), pair.judge.recall(mine))
    same_recall(pair.ours.recall(mine, seen, layout="sharded"), pair.judge.recall(mine, seen))
    found, wanted = pair.ours.neighbors(mine, 3, layout="sharded"), pair.judge.neighbors(mine, 3)
    assert torch.equal(found.ids, wanted.ids)
    assert torch.equal(found.scores, wanted.scores)


def saved(rank: int, size: int, folder: str) -> None:
    """Two saves into one folder; the second is what the folder holds."""
    memory = ShardedMemory("1.5-entmax", 2.0, timeout=60)
    memory.save(folder)
    memory.add(drawn(3, 5), ["x", "y", "z"])
    memory.add(drawn(10, 6), [f"v{i % 3}" for i in range(10)])
    memory.remove([1])
    memory.save(folder)
    assert len(list(Path(folder).iterdir())) == size + 1  # no file of the first save is left


def loaded(rank: int, size: int, folder: str) -> None:
    judge = hopfy.AssociativeMemory("1.5-entmax", 2.0)
    judge.add(drawn(3, 5), ["x", "y", "z"])
    judge.add(drawn(10, 6), [f"v{i % 3}" for i in range(10)])
    judge.remove([1])
    memory = ShardedMemory.load(folder, timeout=60)
    assert max(memory.counts) - min(memory.counts) <= 1
    cues = cues_of(drawn(10, 6))
    same_recall(memory.recall(cues), judge.recall(cues))
    assert memory.add(drawn(1, 7), ["new"]).tolist() == judge.add(drawn(1, 7), ["new"]).tolist()
    same_recall(memory.recall(cues, cues > 0), judge.recall(cues, cues > 0))
    assert torch.equal(memory.ids, judge.ids)


def changes_like_one_memory(rank: int, size: int) -> None:
    """`update`, `in`, `fit`, `predict`, `score`, `explain`: what one memory does and says."""
    for values in (["a", "b", "c", "d", "e"], torch.arange(5.0), None):
        for compare in ("distance", "dot"):
            pair = Pair(rank, size, {"beta": "auto", "compare": compare})
            for memory in (pair.ours, pair.judge):
                memory.add(drawn(5, 1), values)
                memory.update([3, 1], drawn(2, 7))
                if values is not None:
                    memory.update([4], values=[values[0]])
                memory.update([0], 4 * drawn(1, 8), None if values is None else [values[2]])
            pair.same_facts()
            pair.same_beta()
            assert pair.ours.explain() == pair.judge.explain()
            pair.same_answers(cues_of(drawn(5, 1)))
            assert [one in pair.ours for one in (3, 5, -1, "3", 1.5)] == [True] + 4 * [False]
            predicted, wanted = (each.predict(drawn(5, 1)) for each in (pair.ours, pair.judge))
            np.testing.assert_allclose(predicted, wanted) if values is None or isinstance(
                values, Tensor
            ) else np.testing.assert_array_equal(predicted, wanted)
            if values is not None:
                assert pair.ours.score(drawn(5, 1), values) == pair.judge.score(drawn(5, 1), values)
            for memory in (pair.ours, pair.judge):
                memory.fit(drawn(4, 3)[:, :6], [1, 2, 3, 4])
            pair.same_facts()
            pair.same_answers(drawn(2, 4)[:, :6])


def batches_are_kept_by_all_or_by_none(rank: int, size: int) -> list[tuple[str, int]]:
    """An error on the last process: inside a call, between two calls, and of all processes."""
    memory = ShardedMemory(beta=1.0, timeout=60)
    memory.add(drawn(3, 1), ["x", "y", "z"])
    guilty, seen = rank == size - 1, []

    def between() -> None:
        if guilty:
            raise ZeroDivisionError("between two calls")

    def inside() -> None:
        memory.add(drawn(1, 3)[:, : 3 if guilty else SIZE], ["w"])

    for trouble in (between, inside, lambda: memory.remove([77])):
        try:
            with memory.batch():
                memory.add(drawn(2, 2), ["v", "x"])
                memory.remove([0])
                trouble()
                memory.add(drawn(2, 5), ["u", "x"])
        except Exception as error:
            seen.append((type(error).__name__, len(memory)))
        assert memory.ids.tolist() == [0, 1, 2]
        assert memory[1].value == "y"
    with memory.batch(), memory.batch():
        memory.add(drawn(2, 2), ["q", "x"])
        memory.remove([0])
    assert memory.ids.tolist() == [1, 2, 3, 4]
    assert [memory[one].value for one in (1, 2, 3, 4)] == ["y", "z", "q", "x"]
    return seen
