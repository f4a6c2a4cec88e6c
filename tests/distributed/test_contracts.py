"""A failure on one process reaches all of them, and what is sent does not grow with N."""

from __future__ import annotations

from judges import broken
from judges.processes import Processes, refused_by_all


def test_bad_input_on_one_process_is_an_error_on_all(three: Processes) -> None:
    refused_by_all(three.run(broken.bad_inputs), everywhere=("no memories",))


def test_a_failure_inside_a_step_reaches_all(three: Processes) -> None:
    first, second, third = three.run(broken.out_of_memory_in_a_step)
    assert second == ("MemoryError", "no memory left for the scores")
    for name, text in (first, third):
        assert name == "RemoteError"
        assert "rank 1: MemoryError: no memory left" in text


def test_queries_that_are_not_finite_spoil_their_own_row_only(three: Processes) -> None:
    three.run(broken.not_finite_queries)


def test_bytes_follow_the_candidates_and_not_the_memories(three: Processes) -> None:
    few, many = (three.run(broken.traffic, count, 1) for count in (50, 2000))
    assert few == many  # forty times more memories, the same bytes
    ten = three.run(broken.traffic, 2000, 10)
    twenty = three.run(broken.traffic, 2000, 20)
    for (sent_10, *_), (sent_20, *_), (sent_1, useful_1, _) in zip(ten, twenty, few, strict=True):
        assert sent_1 >= useful_1 > 0
        assert sent_20 - sent_10 == 10 * 16  # an id and a score each; the state is summed
        assert sent_10 < 32 * 10 * (16 + 32 * 4)


def test_a_killed_process_is_an_error_within_the_timeout() -> None:
    group = Processes(3, timeout=60)
    try:
        group.start(broken.killed_during_a_retrieval, 5.0)
        for name, text, again, seconds in group.answers([0, 1]):
            assert name == "LostProcessError", text
            assert "died or is stuck" in text
            assert again == "LostProcessError"  # a broken group says so at once
            assert seconds < 20
    finally:
        group.close()
