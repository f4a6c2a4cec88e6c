"""Lookup layers with sharded memories are the layers with all memories, under DDP and FSDP too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from judges import sharded_lookup as laws
from judges.processes import Processes


@pytest.mark.parametrize("memories", [laws.MEMORIES, 2])
@pytest.mark.parametrize("name", laws.LAYERS)
def test_it_is_the_layer_with_all_memories(processes: Processes, name: str, memories: int) -> None:
    if name == "3-subsets" and memories < 3:
        memories = 3  # one row on each process
    processes.run(laws.is_the_layer_with_all_memories, name, memories)


@pytest.mark.parametrize("name", ["softmax", "learned alpha", "3-subsets"])
def test_it_trains_under_ddp(processes: Processes, name: str) -> None:
    processes.run(laws.trains_under_ddp, name)


@pytest.mark.parametrize("name", ["sparsemax", "learned alpha"])
def test_it_trains_under_fsdp(processes: Processes, name: str) -> None:
    processes.run(laws.trains_under_fsdp, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "learned alpha", "several steps"])
@pytest.mark.parametrize("size", [2, 4])
def test_it_trains_under_ddp_over_another_dimension(
    pool: Callable[[int], Processes], size: int, name: str
) -> None:
    pool(size).run(laws.trains_under_ddp_over_another_dimension, name)


def test_it_learns_like_the_whole_layer(processes: Processes) -> None:
    processes.run(laws.learns_like_the_whole_layer)


def test_a_failure_on_one_process_reaches_all(three: Processes) -> None:
    *others, guilty = three.run(laws.failures)
    for seen in (*others, guilty):
        assert seen.pop("all is well")[0] == "nothing"
    for seen in others:
        for what, (name, text) in seen.items():
            agreed = guilty[what][0] == "DisagreementError"
            assert name == ("DisagreementError" if agreed else "RemoteError"), f"{what}: {text}"


def test_bytes_do_not_grow_with_the_memories(three: Processes) -> None:
    assert three.run(laws.traffic, 30) == three.run(laws.traffic, 3000)


def test_out_of_memory_on_one_process_reaches_all(three: Processes) -> None:
    for rank, (failed, after) in enumerate(three.run(laws.out_of_memory)):
        assert failed[0] == ("MemoryError" if rank == 1 else "RemoteError")
        assert "no memory left for the scores" in failed[1]
        assert after[0] == "nothing"


@pytest.mark.parametrize(
    "when", ["forward", "backward", pytest.param("raise in backward", marks=pytest.mark.slow)]
)
def test_a_lost_process_is_an_error_within_the_timeout(when: str) -> None:
    group = Processes(3, timeout=90)
    try:
        group.start(laws.dies, 5.0, when)
        for name, text, again, seconds in group.answers([0, 1]):
            if when == "raise in backward":  # the process lives, and makes another call
                assert name == "DisagreementError", text
                assert "a backward, that some ranks skip" in text
            else:
                assert name == "LostProcessError", text
                assert "died or is stuck" in text
            assert again == "LostProcessError"
            assert seconds < 30
    finally:
        group.close()
