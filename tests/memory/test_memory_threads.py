"""Many threads: every recall sees one state of the memory, whatever happens meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from hopfy import AssociativeMemory
from hopfy.memory._store import Store
from hopfy.memory._turn_taking import Turns
from judges.threads import together


def pair(number: int) -> torch.Tensor:
    """Two patterns that are always stored and forgotten together, and lie far from all others."""
    first = torch.zeros(2, 6)
    first[0, number % 5], first[1, number % 5] = 1.0 + number, -1.0 - number
    first[:, 5] = 1.0
    return first


def test_recalls_see_whole_additions_and_removals():
    memory = AssociativeMemory()
    for number in range(3):  # these stay
        memory.add(pair(number), values=torch.tensor([number, number]))
    writing = threading.Event()
    seen: list[int] = []

    def write() -> None:
        for number in range(3, 33):
            ids = memory.add(pair(number), values=torch.tensor([number, number]))
            assert len(memory) % 2 == 0
            if number % 3 == 0:
                memory.remove(ids)
            looked, patience = len(seen), 500
            while len(seen) < looked + 2 and patience:
                time.sleep(0.001)
                patience -= 1
        writing.set()

    def read() -> None:
        while not writing.is_set():
            chunk = next(memory.chunks(1000))
            assert len(chunk.ids) % 2 == 0
            for first, second in zip(chunk.values[::2], chunk.values[1::2], strict=True):
                assert first == second
            for number in chunk.values[::2].tolist():
                rows = chunk.patterns[chunk.values == number]
                assert torch.equal(rows, pair(number))
            seen.append(len(chunk.ids))

    def recall() -> None:
        while not writing.is_set():
            answer = memory.recall(torch.cat([pair(0), pair(2)]))
            # Each answer is one pattern with its own value and id, from the same state.
            assert bool(answer.certified.all())
            for pattern, value, one in zip(
                answer.patterns, answer.values.tolist(), answer.ids.tolist(), strict=True
            ):
                assert torch.equal(pattern, pair(value)[one % 2])
            assert torch.equal(answer.patterns, torch.cat([pair(0), pair(2)]))

    together(write, read, read, recall, recall)
    assert len(set(seen)) > 3  # the readers did look while the writer wrote
    assert len(memory) == 6 + 2 * (30 - 10)


def test_a_snapshot_outlives_what_comes_after_it():
    memory = AssociativeMemory()
    memory.add(torch.eye(3))
    chunks = memory.chunks(1)
    first = next(chunks)
    memory.remove([0, 1])
    memory.add(torch.full((5, 3), 7.0))
    memory.fit(torch.zeros(2, 4))
    assert [first.ids.tolist(), *(chunk.ids.tolist() for chunk in chunks)] == [[0], [1], [2]]


def test_many_writers_lose_nothing():
    memory = AssociativeMemory(beta=1.0)

    def writer(start: int) -> Callable[[], None]:
        def write() -> None:
            for number in range(start, start + 50):
                memory.add(torch.full((1, 2), float(number)), ids=[number])
                if number % 7 == 0:
                    memory.remove([number])

        return write

    together(*(writer(start) for start in (0, 100, 200, 300)))
    expected = {n for start in (0, 100, 200, 300) for n in range(start, start + 50) if n % 7}
    chunk = next(memory.chunks(1000))
    assert set(chunk.ids.tolist()) == expected
    assert torch.equal(chunk.patterns[:, 0].long(), chunk.ids)


def test_saving_while_others_write_gives_a_sound_file(tmp_path):
    memory = AssociativeMemory(beta=1.0)
    memory.add(torch.randn(2, 3))
    done = threading.Event()

    def write() -> None:
        for _ in range(150):
            memory.add(torch.randn(2, 3))
        done.set()

    def save() -> None:
        while not done.is_set():
            memory.save(tmp_path / "file")
            again = AssociativeMemory.load(tmp_path / "file")
            assert len(again) % 2 == 0
            assert again.add(torch.zeros(3)).tolist() == [len(again) - 1]

    together(write, save)


def test_the_first_additions_of_two_threads_both_count():
    for _ in range(20):
        memory = AssociativeMemory(beta=1.0)
        together(partial(memory.add, torch.eye(2)), partial(memory.add, torch.ones(3, 2)))
        assert len(memory) == 5
        assert sorted(memory.ids.tolist()) == [0, 1, 2, 3, 4]


def test_a_replaced_pattern_is_never_seen_twice(monkeypatch):
    memory = AssociativeMemory(beta=1.0).fit(torch.randn(50, 3))
    append, counts = Store._append, []

    def watched(store: Store, *arguments: object) -> None:
        append(store, *arguments)
        counts.append(len(store.snapshot()))  # what a recall sees as soon as it is published

    monkeypatch.setattr(Store, "_append", watched)
    memory.update([7], patterns=torch.randn(1, 3))
    assert counts == [50]


def test_recalls_and_changes_wait_for_each_other_but_not_for_ever() -> None:
    memory = AssociativeMemory(beta=1.0).fit(torch.eye(4))
    turns = memory._writer.turns
    with turns, turns:  # two recalls that never end
        memory.add(torch.eye(4)[:1] + 1)  # goes on nevertheless
        with memory.batch():
            memory.remove([0])
            assert len(memory.recall(torch.eye(4))) == 4  # a recall of the writer's own
    assert len(memory) == 4
    with turns.change():  # a change that never ends
        assert len(memory.recall(torch.eye(4))) == 4
        assert len(memory.recall(torch.eye(4))) == 4
    assert (turns.recalls, turns.changes) == (0, 0)
    with pytest.raises(ValueError, match="finite"):
        memory.recall(torch.full((4,), torch.nan))
    with pytest.raises(KeyError):
        memory.remove([99])
    assert (turns.recalls, turns.changes) == (0, 0)  # also after an error


def test_one_reader_and_one_writer_alternate() -> None:
    turns = Turns()
    events: list[str] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2.0)  # also how long one waits for the other

    def read() -> None:
        for _ in range(20):
            with turns:
                events.append("r")
                time.sleep(0.001)
                events.append("R")

    def write() -> None:
        for _ in range(20):
            with turns.change():
                events.append("w")
                time.sleep(0.001)
                events.append("W")

    try:
        together(read, write)
    finally:
        sys.setswitchinterval(interval)
    story = "".join(events)
    assert story.replace("rR", "").replace("wW", "") == ""  # none beside another
    both = story[max(story.index("r"), story.index("w")) :]  # one thread may begin late
    assert "wWwWwW" not in both[: both.rindex("R")]
    assert "rRrRrR" not in both[: both.rindex("W")]
