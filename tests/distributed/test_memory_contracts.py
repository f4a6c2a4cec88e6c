"""A failure on one process of a sharded memory reaches all; bytes do not grow with the patterns."""

from __future__ import annotations

from pathlib import Path

import pytest

from judges import broken_memory as broken
from judges.processes import Processes, refused_by_all


def test_bad_input_on_one_process_is_an_error_on_all(three: Processes) -> None:
    refused_by_all(three.run(broken.bad_inputs))


def test_the_same_bad_input_on_all_is_the_same_error_on_all(three: Processes) -> None:
    first, *others = three.run(broken.bad_inputs_of_all)
    for seen in others:
        assert seen == first
    for what, (name, text) in first.items():
        assert name in ("ValueError", "KeyError", "FileNotFoundError"), f"{what}: {name}: {text}"
        assert "expected" in text


def test_out_of_memory_reaches_all_and_stores_nothing(three: Processes) -> None:
    for rank, (recalled, added, count) in enumerate(three.run(broken.out_of_memory)):
        assert recalled[0] == added[0] == ("MemoryError" if rank == 1 else "RemoteError")
        assert rank == 1 or "rank 1: MemoryError: no memory left for the scores" in recalled[1]
        assert rank == 1 or "rank 1: MemoryError: no memory left for the patterns" in added[1]
        assert count == 10


def test_bytes_do_not_grow_with_the_patterns(three: Processes) -> None:
    assert three.run(broken.traffic, 50) == three.run(broken.traffic, 2000)


@pytest.mark.parametrize(
    "how",
    [
        "a file is missing",
        "a bit is flipped",
        "a file is cut",
        "files are exchanged",
        "the manifest is changed",
        "the manifest is no JSON",
    ],
)
def test_damaged_files_are_refused_by_all(three: Processes, tmp_path: Path, how: str) -> None:
    for name, text in three.run(broken.damaged_files, str(tmp_path / "memory"), how):
        assert name in ("ValueError", "RemoteError")
        assert "restore it from a copy" in text


@pytest.mark.parametrize("when", ["recall", "add"])
def test_a_killed_process_is_an_error_within_the_timeout(when: str) -> None:
    group = Processes(3, timeout=60)
    try:
        group.start(broken.killed, 5.0, when)
        for name, text, again, seconds in group.answers([0, 1]):
            assert name == "LostProcessError", text
            assert "died or is stuck" in text
            assert again == "LostProcessError"
            assert seconds < 20
    finally:
        group.close()
