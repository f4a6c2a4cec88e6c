"""`hopfy warm-up` compiles every kernel, so that later processes compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopfy import _warm_up

KERNELS = Path(_warm_up.__file__).parent / "_kernels"


def _folders_with_kernels() -> set[str]:
    """The folders with a function that Python calls once it is compiled."""
    return {path.parent.name for path in KERNELS.rglob("*.py") if "\n@jit" in path.read_text()}


def test_every_folder_of_kernels_belongs_to_one_group() -> None:
    listed = [folder for group in _warm_up.GROUPS.values() for folder in group.kernels]
    assert sorted(listed) == sorted(_folders_with_kernels())


def test_a_failure_names_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_warm_up, "GROUPS", {"no such group": None})
    with pytest.raises(RuntimeError, match="compiling no such group failed: KeyError"):
        _warm_up.warm_up()


def _run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> list[subprocess.Popen[str]]:
    """Let every group run this code; the list fills with the processes."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    monkeypatch.setattr(_warm_up, "_start", start)
    return started


def test_progress_counts_the_groups_down(monkeypatch: pytest.MonkeyPatch) -> None:
    started = _run_instead(monkeypatch, "pass")
    said: list[str] = []
    assert _warm_up.warm_up(said.append) == len(_warm_up.GROUPS) == len(started)
    assert [int(line.split()[0]) for line in said] == list(range(len(started), -1, -1))


def test_as_many_processes_at_a_time_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    started = _run_instead(monkeypatch, "import time; time.sleep(0.05)")
    most = 0

    def look(_: str) -> None:
        nonlocal most
        most = max(most, sum(process.poll() is None for process in started))

    monkeypatch.setattr(_warm_up.time, "sleep", lambda _: look(""))
    _warm_up.warm_up(processes=2)
    assert most == 2


def test_an_interruption_ends_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = _run_instead(monkeypatch, "import time; time.sleep(600)")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_warm_up.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _warm_up.warm_up(processes=2)
    assert [process.returncode is not None for process in started] == [True, True]


def test_the_second_run_finds_all_compiled(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hopfy._warm_up", "images"]
    own = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    written = []
    for _ in range(2):
        subprocess.run(command, env=own, check=True)
        files = (tmp_path / "hopfy").glob("*.kernel")
        written.append({path.name: path.stat().st_mtime_ns for path in files})
    assert written[0] == written[1] != {}


_NOT_COMPILED = """
import importlib, pkgutil
import hopfy._kernels
from hopfy import _warm_up
from hopfy._runtime.kernel_cache import KernelCache

for name in _warm_up.GROUPS:
    _warm_up.run_group(name)
for found in pkgutil.walk_packages(hopfy._kernels.__path__, "hopfy._kernels."):
    if ".gpu" in found.name:
        continue
    for kernel in vars(importlib.import_module(found.name)).values():
        if isinstance(getattr(kernel, "_cache", None), KernelCache) and not kernel.overloads:
            print(kernel.py_func.__module__, kernel.__name__, sep=".")
"""


def test_the_groups_call_every_kernel() -> None:
    """A kernel that no group calls would be compiled at a user's first call."""
    ran = subprocess.run(
        [sys.executable, "-c", _NOT_COMPILED],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HOPFY_QUIET": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert sorted(set(ran.stdout.split())) == []


@pytest.mark.slow
def test_a_group_leaves_code_of_each_of_its_folders(tmp_path: Path) -> None:
    for name in ("entmax and normmax", "images"):
        subprocess.run(
            [sys.executable, "-m", "hopfy._warm_up", name],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
            check=True,
        )
        for folder in _warm_up.GROUPS[name].kernels:
            assert list((tmp_path / "hopfy").glob(f"_kernels.{folder}.*.kernel")), folder
