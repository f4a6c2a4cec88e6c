"""Work that several processes share: nothing twice, nothing lost."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopfy.paper._processes import helping, keeping_memory
from hopfy.paper._shared_grid import SharedGrid

POINTS = [{"x": number} for number in range(6)]

WORKER = """
import sys, time
from pathlib import Path
from hopfy.paper._shared_grid import SharedGrid

journal, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

def compute(point):
    with log.open("a") as file:
        file.write(f"{point['x']}\\n")
    time.sleep(seconds)
    return {"square": point["x"] ** 2}

SharedGrid(journal, "squares", [{"x": number} for number in range(6)]).work(compute)
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    arguments = [str(folder / "journal"), str(folder / "log"), str(seconds)]
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments])


def wait_for(path: Path) -> None:
    """Return when the file exists, or fail after a minute."""
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{path.name} did not appear")


def squares(folder: Path, compute=lambda point: {"square": point["x"] ** 2}) -> list[int]:
    grid = SharedGrid(folder / "journal", "squares", POINTS)
    grid.work(compute)
    return [result["square"] for result in grid.results()]


def test_two_processes_share_and_see_all(tmp_path):
    workers = [start(tmp_path, 0.2) for _ in range(2)]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == list("012345")
    assert squares(tmp_path, lambda _: pytest.fail("all is done")) == [0, 1, 4, 9, 16, 25]


def test_what_a_killed_process_had_taken_is_done_again(tmp_path):
    worker = start(tmp_path, 300)
    wait_for(tmp_path / "log")
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(60)
    done = []

    def compute(point):
        done.append(point["x"])
        return {"square": point["x"] ** 2}

    assert squares(tmp_path, compute) == [0, 1, 4, 9, 16, 25]
    assert done == [1, 2, 3, 4, 5, 0]


def test_a_failure_is_not_a_result(tmp_path):
    def fail(point):
        if point["x"] == 2:
            raise ValueError("bad luck")
        return {"square": point["x"] ** 2}

    with pytest.raises(ValueError, match="bad luck"):
        squares(tmp_path, fail)
    grid = SharedGrid(tmp_path / "journal", "squares", POINTS)
    assert grid.results() is None
    assert squares(tmp_path) == [0, 1, 4, 9, 16, 25]


def test_without_waiting_others_are_left_alone(tmp_path):
    worker = start(tmp_path, 300)
    wait_for(tmp_path / "log")
    grid = SharedGrid(tmp_path / "journal", "squares", POINTS)
    done = []
    grid.work(lambda point: done.append(point["x"]) or {}, wait=False)
    assert done == [1, 2, 3, 4, 5]
    assert grid.results() is None
    worker.kill()
    worker.wait(60)


def touch(folder: Path, name: str) -> None:
    (folder / name).touch()
    time.sleep(600)


def test_helpers_are_gone_after_an_error(tmp_path):
    before = set(multiprocessing.active_children())  # other tests keep process groups

    def block() -> None:
        with helping(1, touch, (tmp_path, "seen")):
            wait_for(tmp_path / "seen")
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        block()
    assert set(multiprocessing.active_children()) <= before


FAULTS = """
import resource, sys
from contextlib import nullcontext
import torch
from hopfy.paper._processes import keeping_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.ones(10_000_000)
usual = faults()
with keeping_memory():
    torch.ones(10_000_000)
    kept = faults()
print(usual, kept, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc returns memory, others differ")
def test_memory_that_is_kept_needs_no_new_pages_and_is_returned_afterward():
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    usual, kept, afterward = map(int, run.stdout.split())
    assert kept < usual / 5
    assert afterward > usual / 2


def test_other_libraries_keep_memory_as_they_do(monkeypatch):
    monkeypatch.setattr("hopfy.paper._processes.ctypes.CDLL", lambda _: object())
    with keeping_memory():
        pass
