"""A sharded memory tells the same as one memory, on real gloo process groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hopfy.distributed import ShardedMemory
from judges import sharded_memory as laws
from judges.processes import Processes


def _slow(value: object) -> object:
    return pytest.param(value, marks=pytest.mark.slow)


def _slow_pair(before: int, after: int) -> object:
    return pytest.param(before, after, marks=pytest.mark.slow)


QUICK = {("sparsemax, auto", "uneven"), ("1.5-entmax, warm", "one shard")}
LIVES = [(name, kind) for name in laws.SETTINGS for kind in ("uneven", "one shard")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*life, marks=[] if life in QUICK else [pytest.mark.slow]) for life in LIVES],
)
def test_it_tells_the_same_as_one_memory(processes: Processes, name: str, kind: str) -> None:
    processes.run(laws.tells_the_same_as_one_memory, name, kind, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", laws.SETTINGS)
def test_it_does_in_single_precision(processes: Processes, name: str) -> None:
    processes.run(laws.tells_the_same_as_one_memory, name, "uneven", torch.float32)


def test_patterns_go_to_the_emptiest_shard(processes: Processes) -> None:
    processes.run(laws.is_shared_out_evenly)


def test_values_of_every_kind(processes: Processes) -> None:
    processes.run(laws.keeps_values_of_every_kind)


def test_sharded_cues_get_their_own_answers(processes: Processes) -> None:
    processes.run(laws.answers_sharded_cues)


def test_changes_are_those_of_one_memory(processes: Processes) -> None:
    processes.run(laws.changes_like_one_memory)


def test_a_batch_is_kept_by_all_or_by_none(processes: Processes) -> None:
    *others, guilty = processes.run(laws.batches_are_kept_by_all_or_by_none)
    assert guilty == [("ZeroDivisionError", 3), ("ValueError", 3), ("KeyError", 3)]
    for seen in others:
        assert seen == [("RemoteError", 3), ("RemoteError", 3), ("KeyError", 3)]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), _slow_pair(1, 4), _slow_pair(4, 1)])
def test_files_are_read_by_more_and_by_fewer_processes(
    pool: Callable[[int], Processes], tmp_path: Path, before: int, after: int
) -> None:
    folder = str(tmp_path / "memory")
    pool(before).run(laws.saved, folder)
    pool(after).run(laws.loaded, folder)


def test_files_are_read_by_another_number_of_processes(
    processes: Processes, tmp_path: Path
) -> None:
    folder = str(tmp_path / "memory")
    processes.run(laws.saved, folder)
    processes.run(laws.loaded, folder)
    laws.loaded(0, 1, folder)  # one process


def test_one_process_describes_what_it_holds() -> None:
    memory = ShardedMemory("sparsemax", 2.0)
    assert memory.describe() == repr(memory)
    memory.add(torch.eye(4), values=["a", "b", "c", "a"])
    assert memory.describe().splitlines()[1:] == [
        "4 coordinates each, float32, 0.0 of 0.0 MB on this process.",
        "Patterns by rank: 4.",
        "Values: text, 3 different ones.",
    ]
