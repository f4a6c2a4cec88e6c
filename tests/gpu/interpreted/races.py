"""No races: in every launch an element is written once, and never read by another program.

Triton's interpreter runs one program after the other, so a race would not show in its results. Here
all its loads and stores are recorded, with the program that made them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

import hopfy
from hopfy import functional as F
from hopfy._kernels.attention import gpu
from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.backends import kernels_for

FOLDERS = {"capped_sparsemax": "capped"}


class Launch:
    """Addresses written and read by each program of a launch."""

    def __init__(self) -> None:
        self.writes: list[tuple[tuple[int, ...], np.ndarray]] = []
        self.reads: list[tuple[tuple[int, ...], np.ndarray]] = []

    def check(self) -> np.ndarray:
        """The addresses written, each of them once and read by no other program."""
        if not self.writes:
            return np.empty(0, np.uint64)
        written = np.concatenate([addresses for _, addresses in self.writes])
        distinct, times = np.unique(written, return_counts=True)
        assert (times == 1).all(), "an element was written twice"
        writer = {int(a): program for program, here in self.writes for a in here}
        for program, here in self.reads:
            for address in np.intersect1d(here, distinct):
                assert writer[int(address)] == program, "another program reads what is written"
        return distinct


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    found: list[Launch] = []
    store, load = InterpreterBuilder.create_masked_store, InterpreterBuilder.create_masked_load
    begin = InterpreterBuilder.set_grid_dim

    def set_grid_dim(self: Any, *grid: int) -> None:
        assert grid[1:] == (1, 1), "the second and third dimension hold at most 65,535 programs"
        found.append(Launch())
        begin(self, *grid)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        here = np.broadcast_to(mask.data, ptrs.data.shape)
        found[-1].writes.append((tuple(self.grid_idx), ptrs.data[here].ravel()))
        return store(self, ptrs, value, mask, *rest)

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        here = np.broadcast_to(mask.data, ptrs.data.shape)
        found[-1].reads.append((tuple(self.grid_idx), ptrs.data[here].ravel()))
        return load(self, ptrs, mask, *rest)

    def refuse(*_: Any) -> None:
        raise AssertionError("an atomic operation: the order of its additions would vary")

    monkeypatch.setattr(InterpreterBuilder, "set_grid_dim", set_grid_dim)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", create_masked_store)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", create_masked_load)
    monkeypatch.setattr(InterpreterBuilder, "create_atomic_rmw", refuse)
    monkeypatch.setattr(InterpreterBuilder, "create_atomic_cas", refuse)
    with hopfy.use_backend("triton"):
        yield found


def addresses(tensor: Tensor) -> np.ndarray:
    """Of every element of a contiguous tensor."""
    step = tensor.element_size()
    return np.arange(tensor.numel(), dtype=np.uint64) * step + np.uint64(tensor.data_ptr())


def covers(written: np.ndarray, tensor: Tensor) -> bool:
    return bool(np.isin(addresses(tensor), written).all())


MAPS = ["entmax", "normmax", "ksubsets", "entropic_ksubsets", "capped_sparsemax"]


@pytest.mark.parametrize("size", [5, 600, 5000])
@pytest.mark.parametrize("map", MAPS)
def test_rows(map: str, size: int, launches: list[Launch]) -> None:
    """Forward and backward, several rows of a program, one, and several passes."""
    scores = torch.randn(40 if size < 100 else 2, size)
    kernels = kernels_for(FOLDERS.get(map, map), scores)
    number = torch.tensor(2.0, dtype=torch.float64)
    weights = kernels.solve(scores, number)
    gradient = kernels.vjp(weights, number, torch.randn_like(scores))
    for launch, written in zip(launches, (weights, gradient), strict=True):
        assert np.array_equal(np.sort(addresses(written)), launch.check())


@pytest.mark.parametrize(("kind", "number"), [("entmax", 1.5), ("normmax", 3.0), ("ksubsets", 3.0)])
def test_attention(kind: str, number: float, launches: list[Launch]) -> None:
    """Several blocks of queries and keys, two query heads for each key head, dropout."""
    m, n = 19, 40
    inputs = torch.randn(2, 2 * m, 8), torch.randn(2, n, 8), torch.randn(2, n, 6)
    visible = Visible(m, mask=torch.rand(1, m, n) > 0.3, mask_of=torch.zeros(4, dtype=torch.int64))
    family = Family(kind, torch.tensor(number, dtype=torch.float64))
    output, state = gpu.forward(*inputs, visible, family, 1.0, 0.2)
    gradients = gpu.backward(state, *inputs, torch.randn_like(output), wanted=True)
    factors = gpu.kept_weights(state, torch.Size((2, 2 * m, n)), torch.float32)
    written = [launch.check() for launch in launches]
    assert len(written) == 5
    assert covers(written[0], state.rows[:3])
    assert covers(written[1], output)
    assert covers(written[1], state.rows[3])
    assert covers(written[2], gradients[0])
    assert covers(written[2], gradients[3])
    assert covers(written[3], gradients[1])
    assert covers(written[3], gradients[2])
    assert covers(written[4], factors)


def test_results_do_not_change_from_run_to_run() -> None:
    scores = torch.randn(20, 70)
    with hopfy.use_backend("triton"):
        assert torch.equal(F.entmax(scores, 1.3), F.entmax(scores, 1.3))
