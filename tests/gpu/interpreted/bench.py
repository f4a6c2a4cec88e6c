"""`hopfy bench gpu` on a GPU that is not there: run by `test_interpreted.py`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pretend import KIND, device
from torch import Tensor

from hopfy import functional as F
from hopfy.bench import _gpu

SMALL = _gpu.Sizes((40,), entries=80, tokens=8, heads=2, head_size=8, repeat=1)


def bench(sizes: _gpu.Sizes = SMALL) -> tuple[list[_gpu.GpuRow], list[str]]:
    with device() as log:
        rows = _gpu.bench_on(torch.device(KIND, 0), sizes, lambda _: None)
    return rows, log.launches


def test_every_row_is_checked_and_measured() -> None:
    """By the kernels, forward and backward, without the packages that may be missing."""
    rows, launches = bench()
    assert len(rows) == 7
    for row in rows:
        assert math.isfinite(row.forward_ms + row.forward_backward_ms + row.error), row
        assert 0 < row.selected < 1
        assert not row.over.startswith(("WRONG", "failed", "skipped"))
    kernels = {"forward_kernel", "backward_kernel", "threshold_kernel", "queries_kernel"}
    assert kernels <= set(launches)
    assert "SDPA" in rows[-1].over
    assert "flash_attn" not in rows[-1].over


def test_what_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory, a wrong answer, an error of the compiler: each has a row that says so."""

    def without_memory(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    def wrong(scores: Tensor, **options: Any) -> Tensor:
        off = 1e-3 if scores.dtype == torch.float32 else 0.0
        return F.entmax(scores, 1.5) + off

    def broken(*_: Any, **__: Any) -> Tensor:
        raise ValueError("out of resource: shared memory | Required: 1\nmore lines")

    maps = {"memory": without_memory, "wrong": wrong, "broken": broken, "right": F.sparsemax}
    monkeypatch.setattr(_gpu, "_maps", lambda: maps)
    monkeypatch.setattr(_gpu, "_ALPHAS", {})
    rows, _ = bench()
    assert [row.operation for row in rows] == list(maps)
    assert rows[0].over == "skipped: out of memory"
    assert rows[1].over.startswith("WRONG: wrong, rows of 40, float32: expected at most 2e-06")
    assert rows[2].over == "failed: ValueError out of resource: shared memory / Required: 1"
    assert rows[3].over.startswith("softmax ")
    lines = _gpu.table_of(rows).splitlines()
    assert lines[4] == "| memory | 40 | - | - | - | - | skipped: out of memory |"
    assert all(line.count("|") == 8 for line in lines[2:])


def test_rows_at_a_kink_are_not_judged() -> None:
    """The threshold of the first row is exactly one of its scores; scaling all scores shows it."""
    scores = torch.tensor([[1.0, 0.5, 0.25, -3.0], [1.0, 0.5, 0.2, -3.0]], dtype=torch.float64)
    cotangent = torch.tensor([[1.0, -1.0, 2.0, 0.5]], dtype=torch.float64).expand(2, 4)
    found = _gpu._has_one_gradient(F.sparsemax, scores, cotangent)
    assert found.tolist() == [[False], [True]]


@pytest.mark.slow
def test_a_length_that_is_measured() -> None:
    sizes = _gpu.Sizes((512,), entries=512, tokens=16, heads=1, head_size=16, repeat=1)
    rows, _ = bench(sizes)
    assert all(math.isfinite(row.forward_backward_ms) for row in rows), rows
