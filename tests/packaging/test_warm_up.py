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


def test_progress_counts_the_groups_down(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(_warm_up, "_in_a_process", done.append)
    said: list[str] = []
    assert _warm_up.warm_up(said.append) == len(_warm_up.GROUPS) == len(done)
    assert [int(line.split()[0]) for line in said] == list(range(len(done), -1, -1))


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
