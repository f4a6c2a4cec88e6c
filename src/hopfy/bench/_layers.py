"""Layers against torch's attention, and batched pooling against one bag at a time.

Nothing is timed before its result was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hopfy.bench._timing import best_times
from hopfy.nn import HopfieldAttention, HopfieldPooling

__all__ = ["Row", "attention", "memory", "peak_megabytes", "pooling", "rows"]

_HEADS, _HEAD_SIZE = 8, 64
_WIDTH = _HEADS * _HEAD_SIZE
_OMEGAS = ("sparsemax", "1.5-entmax")


class Row(NamedTuple):
    """One comparison: ours against theirs, as a ratio with the limit it should keep."""

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    limit: float


def rows() -> list[Row]:
    """All comparisons of this module."""
    return [
        *attention(8, 512, limit=1.3, rounds=7),
        *attention(1, 4096, limit=1.0, rounds=3),
        *memory(8, 512),
        *memory(1, 4096),
        *pooling(),
    ]


def attention(batch: int, length: int, limit: float, rounds: int) -> list[Row]:
    """Forward and backward of self-attention against ``need_weights=False``."""
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
    x = torch.randn(batch, length, _WIDTH, requires_grad=True)
    layers: dict[str, nn.Module] = {"softmax": reference}
    for omega in _OMEGAS:
        layers[omega] = _sparse(omega, reference)
        _check_attention(layers[omega], x[:1, :256])
    calls = {name: _step(layer, x) for name, layer in layers.items()}
    times = _milliseconds(calls, rounds)
    theirs = times.pop("softmax")
    where = f"batch {batch}, length {length}, forward + backward"
    return [
        Row(f"{name} attention, {where}", ours, theirs, "ms", ours / theirs, limit)
        for name, ours in times.items()
    ]


def memory(batch: int, length: int) -> list[Row]:
    """Peak memory of forward and backward against ``need_weights=True``."""
    reference = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
    x = torch.randn(batch, length, _WIDTH, requires_grad=True)
    theirs = peak_megabytes(_step(reference, x, need_weights=True))
    where = f"batch {batch}, length {length}, peak memory"
    found = []
    for omega in _OMEGAS:
        ours = peak_megabytes(_step(_sparse(omega, reference), x))
        found.append(Row(f"{omega} attention, {where}", ours, theirs, "MB", ours / theirs, 1.0))
    return found


def pooling(bags: int = 64, size: int = 32, rounds: int = 7) -> list[Row]:
    """One batched training step over bags of about 12 instances against one bag at a time."""
    torch.manual_seed(0)
    lengths = torch.randint(8, 17, (bags,))
    mask = torch.arange(16) < lengths[:, None]
    x = torch.randn(bags, 16, size)
    alone = [x[b : b + 1, :n] for b, n in enumerate(lengths.tolist())]
    found = []
    for omega in ("5-normmax", "3-subsets"):
        pool = HopfieldPooling(size, omega=omega, normalize=True)

        def batched(pool: nn.Module = pool) -> Tensor:
            pool.zero_grad()
            output: Tensor = pool(x, mask=mask)
            output.sum().backward()  # type: ignore[no-untyped-call]
            return output

        def one_by_one(pool: nn.Module = pool) -> Tensor:
            pool.zero_grad()
            outputs = []
            for bag in alone:
                output = pool(bag)
                output.sum().backward()
                outputs.append(output)
            return torch.cat(outputs)

        torch.testing.assert_close(batched(), one_by_one(), atol=1e-4, rtol=1e-4)
        times = _milliseconds({"ours": batched, "theirs": one_by_one}, rounds)
        ours, theirs = times["ours"], times["theirs"]
        name = f"{omega} pooling of {bags} bags, batched against one at a time"
        found.append(Row(name, ours, theirs, "ms", ours / theirs, 1 / 20))
    return found


def _sparse(omega: str, reference: nn.MultiheadAttention) -> HopfieldAttention:
    layer = HopfieldAttention(_WIDTH, _HEADS, batch_first=True, omega=omega)
    layer.load_state_dict(reference.state_dict())
    return layer


def _check_attention(layer: nn.Module, x: Tensor) -> None:
    """The sparse path must equal the one that holds all weights, output and gradients."""
    answers = []
    for need_weights in (False, True):
        output = layer(x, x, x, need_weights=need_weights)[0]
        inputs = [x, *layer.parameters()]
        answers.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for sparse, dense in zip(*answers, strict=True):
        torch.testing.assert_close(sparse, dense, atol=1e-4, rtol=1e-3)


def _step(layer: nn.Module, x: Tensor, need_weights: bool = False) -> Callable[[], Any]:
    def step() -> None:
        x.grad = None
        layer.zero_grad()
        layer(x, x, x, need_weights=need_weights)[0].sum().backward()

    return step


def _milliseconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    best = best_times(calls, rounds=rounds, seconds=60.0)
    return {name: 1e3 * seconds for name, seconds in best.items()}


def peak_megabytes(step: Callable[[], Any]) -> float:
    """The most that torch held at one time for ``step``, beyond what it held before."""
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    profiler: Any = profile.profiler
    changes = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    held = accumulate((int(event.nbytes()) for event in changes), initial=0)
    return max(held) / (1 << 20)
