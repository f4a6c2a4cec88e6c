"""Rows over threads: every row once, whichever team does the work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import hopfy
from hopfy import functional as F
from hopfy._runtime import threads
from hopfy._runtime.threads import one_thread_if_crowded, over_rows

MUCH = 1 << 30  # work that is worth every thread


@pytest.fixture(params=["torch's team", "our pool"])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "our pool":
        monkeypatch.setattr(threads, "_torch_team", lambda: None)
    elif threads._torch_team() is None:
        pytest.skip("this build of torch has no OpenMP team to join")
    monkeypatch.setattr(threads._Machine, "is_crowded", lambda _: False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 1000])
def test_every_row_is_covered_once(team: str, rows: int) -> None:
    said = over_rows(lambda start, stop, shift: (start + shift, stop + shift), rows, MUCH, 5)
    covered = sorted(row for start, stop in said for row in range(start, stop))
    assert covered == list(range(5, rows + 5))


def test_several_threads_take_part(team: str) -> None:
    def kernel(start: int, stop: int) -> int:
        time.sleep(0.02)  # long enough for the others to come
        return threading.get_ident()

    assert len(set(over_rows(kernel, 1000, MUCH))) > 1


def test_little_work_stays_here(team: str) -> None:
    assert over_rows(lambda start, stop: (start, stop, threading.get_ident()), 100, 100) == [
        (0, 100, threading.get_ident())
    ]


def test_a_crowded_machine_gets_one_thread(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads._Machine, "is_crowded", lambda _: True)
    assert over_rows(lambda start, stop: (start, stop, threading.get_ident()), 100, MUCH) == [
        (0, 100, threading.get_ident())
    ]


@pytest.mark.parametrize("crowded", [True, False])
def test_torch_gets_one_thread_on_a_crowded_machine(
    crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads._Machine, "is_crowded", lambda _: crowded)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with suppress(KeyError), one_thread_if_crowded():
            assert torch.get_num_threads() == (1 if crowded else 2)
            with one_thread_if_crowded():
                assert torch.get_num_threads() == (1 if crowded else 2)
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("content", "crowded"),
    [("9.5 9.0 8.0 2/900 1234", False), ("0.1 0.1 0.1 9/900 1234", True), ("nonsense", False)],
)
def test_crowded_is_what_the_kernel_counts_now(
    content: str, crowded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "loadavg"
    file.write_text(content)
    monkeypatch.setattr(threads, "Path", lambda _: file)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    machine = threads._Machine()
    assert machine.is_crowded() == crowded
    file.unlink()
    assert machine.is_crowded() == crowded  # not read again so soon
    assert not threads._Machine().is_crowded()


def test_a_failure_reaches_the_caller(team: str) -> None:
    def kernel(start: int, stop: int) -> None:
        if start <= 500 < stop:
            raise ZeroDivisionError("row 500")

    with pytest.raises(ZeroDivisionError, match="row 500"):
        over_rows(kernel, 1000, MUCH)


def test_calls_within_calls(team: str) -> None:
    def outer(start: int, stop: int) -> int:
        return sum(sum(over_rows(lambda a, b: b - a, 10, MUCH)) for _ in range(start, stop))

    assert sum(over_rows(outer, 20, MUCH)) == 200


def test_the_team_does_not_change_the_answer(team: str) -> None:
    scores = torch.randn(999, 130)
    answer = F.entmax(scores, 1.3)
    torch.set_num_threads(1)
    assert torch.equal(answer, F.entmax(scores, 1.3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_child_of_a_fork_has_threads_of_its_own() -> None:
    """Torch's team does not survive a fork; a kernel that waited for it would wait for ever."""
    program = """
import os, torch
from hopfy import functional as F
from hopfy._runtime import threads
torch.set_num_threads(2)
threads._Machine.is_crowded = lambda _: False
scores = torch.randn(2000, 100)
expected = F.entmax(scores, 1.5)
child = os.fork()
if child == 0:
    same = bytes(F.entmax(scores, 1.5).numpy()) == bytes(expected.numpy())
    os._exit(0 if same and threads._pool is not None else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    source = str(Path(hopfy.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.stdout.strip() == "0", result.stderr
