"""Compiled kernels on disk: found again, never trusted blindly, never required."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hopfy
from hopfy._runtime import kernel_cache
from hopfy._runtime.compilation import jit, leaf, part

SOURCE = str(Path(hopfy.__file__).parents[1])


def double(start: int, stop: int, values: np.ndarray) -> int:
    for i in range(start, stop):
        values[i] *= 2
    return stop - start


def run(kernel: Callable[..., int]) -> tuple[int, int]:
    """Run a kernel; how often its code was found on disk, and how often it was compiled."""
    values = np.arange(4.0)
    kernel(0, 4, values)
    assert values.tolist() == [0, 2, 4, 6]
    return sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HOPFY_QUIET", "1")
    return tmp_path / "hopfy"


def test_code_is_compiled_once_and_found_again(folder: Path) -> None:
    assert run(jit(double)) == (0, 1)
    assert len(list(folder.iterdir())) == 1
    assert run(jit(double)) == (1, 0)


def test_a_change_of_any_kernel_source_compiles_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(jit(double))
    monkeypatch.setattr(kernel_cache, "_stamp", lambda _: b"x" * 32)
    assert run(jit(double)) == (0, 1)
    assert run(jit(double)) == (1, 0)
    assert len(list(folder.iterdir())) == 1  # replaced, not added


def test_the_stamp_covers_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_kernels" / "rows").mkdir(parents=True)
    kernel, middle = tmp_path / "_kernels" / "kernel.py", tmp_path / "_kernels" / "middle.py"
    helper, other = (tmp_path / "_kernels" / "rows" / f"{name}.py" for name in ("helper", "other"))
    kernel.write_text("import math\n\nfrom hopfy._kernels.middle import (\n    a,\n    b,\n)\n")
    middle.write_text("from hopfy._kernels.rows import helper as h\n")
    helper.write_text("from hopfy._kernels.kernel import circle\na = 1")
    other.write_text("a = 1")
    monkeypatch.setattr(kernel_cache, "_PACKAGE", tmp_path)
    stamp = kernel_cache._stamp.__wrapped__
    first = stamp(kernel)
    other.write_text("a = 2")
    assert stamp(kernel) == first
    helper.write_text("a = 2")
    assert stamp(kernel) != first


@pytest.mark.parametrize("damage", ["empty", "cut", "one bit", "garbage", "a folder"])
def test_damaged_files_are_compiled_again(folder: Path, damage: str) -> None:
    run(jit(double))
    (path,) = folder.iterdir()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    contents = {"empty": b"", "cut": raw[:-100], "one bit": raw, "garbage": b"\x00" * 5000}
    if damage == "a folder":
        path.unlink()
        path.mkdir()
        assert run(jit(double)) == (0, 1)
    else:
        path.write_bytes(bytes(contents[damage]))
        assert run(jit(double)) == (0, 1)
        assert run(jit(double)) == (1, 0)  # and the file is whole again


def test_code_that_numba_cannot_rebuild_is_compiled_again(folder: Path) -> None:
    run(jit(double))
    (path,) = folder.iterdir()
    stamp = kernel_cache._stamp(Path(__file__))
    kernel_cache._write_checked(path, stamp, b"a checksum that fits, but no pickle")
    assert run(jit(double)) == (0, 1)


def test_without_a_writable_folder_everything_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("a file where a folder should be")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))
    assert run(jit(double)) == (0, 1)
    assert run(jit(double)) == (0, 1)


def test_the_users_cache_serves_a_package_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_kernels").write_text("a file where a folder should be")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_PACKAGE", tmp_path)
    assert run(jit(double)) == (0, 1)
    assert run(jit(double)) == (1, 0)
    assert len(list((tmp_path / "cache").rglob("*.kernel"))) == 1


def test_a_slow_compilation_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_cache, "_SLOW", 0.0)
    monkeypatch.setattr(kernel_cache, "_announced", set())
    monkeypatch.delenv("HOPFY_QUIET", raising=False)
    for name in ("_kernels.entmax.cpu._softmax", "_kernels.entmax.cpu._concave"):
        timer = kernel_cache._announce_later(name)
        if timer is not None:
            timer.join(10)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "compiling entmax" in lines[0]
    monkeypatch.setattr(kernel_cache, "_announced", set())
    monkeypatch.setenv("HOPFY_QUIET", "1")
    assert kernel_cache._announce_later("_kernels.entmax.cpu._softmax") is None


def test_a_quick_compilation_is_not_announced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOPFY_QUIET")
    monkeypatch.setattr(kernel_cache, "_SLOW", 60.0)
    run(jit(double))
    time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_the_next_process_finds_the_code(folder: Path) -> None:
    program = """
import torch
from hopfy import functional as F
from hopfy._kernels.threshold import cpu
F.sparsemax(torch.tensor([1.0, 0.5]))
print(sum(cpu.short_rows.stats.cache_misses.values()))
"""
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    misses = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert misses == ["1", "0"]


@part
def _shifted(value: float, by: int) -> float:
    return value + by


@part
def _shifted_twice(value: float, by: int) -> float:
    return _shifted(_shifted(value, by), 1)  # a literal and a variable


def shift(start: int, stop: int, values: np.ndarray) -> None:
    for i in range(start, stop):
        values[i] = _shifted_twice(values[i], i)


def test_parts_are_translated_once_and_compiled_with_their_kernel(folder: Path) -> None:
    for _ in range(2):  # compiled, then found on disk
        kernel, values = jit(shift), np.zeros(3)
        kernel(0, 3, values)
        assert values.tolist() == [1, 2, 3]
    assert sum(kernel.stats.cache_hits.values()) == 1
    assert len(list(folder.iterdir())) == 1  # no code for the parts
    assert len(_shifted.signatures) == len(_shifted_twice.signatures) == 1


def test_a_kernel_may_call_another_kernel(folder: Path) -> None:
    """Both are compiled at once, nothing for Python's calls of the inner one, and numba's own state
    is as before."""
    from numba.core.registry import cpu_target

    inner = jit(double)

    @jit
    def outer(start, stop, values):
        return inner(start, stop, values)

    assert run(outer) == (0, 1)
    assert not inner.signatures
    assert run(outer) == (0, 1)
    assert run(inner) == (0, 1)
    assert "resolve_function_type" not in vars(cpu_target.typing_context)


def test_a_leaf_leaves_the_references_of_its_arrays_alone(folder: Path) -> None:
    @leaf
    def total(table, row):
        found, view = 0.0, table[row]
        for i in range(view.shape[0]):
            found += view[i]
        return found

    @jit
    def sums(start, stop, table, out):
        for r in range(start, stop):
            copy = np.empty(table.shape)
            for i in range(table.shape[0]):
                for j in range(table.shape[1]):
                    copy[i, j] = 2.0 * table[i, j]
            out[r] = total(table, r) + total(copy, r)

    table, out = np.arange(12.0).reshape(3, 4), np.empty(3)
    before = sys.getrefcount(table)
    for _ in range(100):
        sums(0, 3, table, out)
    assert out.tolist() == [18.0, 66.0, 114.0]
    assert sys.getrefcount(table) == before


@pytest.mark.slow
def test_another_numba_compiles_helpers_as_usual(tmp_path):
    """The compiler of helpers builds on numba's internals; without them kernels still compile."""
    code = (
        "import sys; sys.modules['hopfy._runtime.numba_compilers'] = None\n"
        "import torch; from hopfy import functional as F\n"
        "print(F.sparsemax(torch.tensor([0.5, 0.3, -1.0])).tolist())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "HOPFY_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert [round(x, 6) for x in json.loads(done.stdout)] == [0.6, 0.4, 0.0]


def test_parts_are_linked_after_all_that_call_them() -> None:
    """LLVM drops what nothing calls yet: a part that two others share, and others' libraries."""
    parts = pytest.importorskip("hopfy._runtime.numba_compilers")

    class Part(parts._PartLibrary):
        def __init__(self, *called: object) -> None:
            self._linking_libraries = list(called)

    others = object()
    last = Part(others)
    second = Part(last)
    first = Part(second, last, others)
    for given in ([others, last, first], [first, last], [last, second, first, others]):
        assert parts._in_linking_order(given) == [first, second, last, others]
