"""The maps against `torch.softmax` and against the PyPI package ``entmax``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.bench._timing import best_times, geometric_mean

__all__ = ["MapRow", "bench_maps"]

SHAPES = [(4096, 64), (2048, 512), (512, 4096), (128, 60_000)]
SCALES = [1.0, 3.0]

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class MapRow:
    """One map: ratios of times, geometric means over all shapes and scales."""

    name: str
    forward: float
    forward_backward: float
    faster_than_entmax: float | None
    small_call_microseconds: float
    worst_error: float


def bench_maps(progress: Callable[[str], None] = lambda _: None) -> list[MapRow]:
    """Measure every map on every shape; the answers are checked first."""
    return [_bench_one(name, ours, theirs, progress) for name, ours, theirs in _contestants()]


def _contestants() -> Iterator[tuple[str, Map, Map | None]]:
    try:
        import entmax as package
    except ImportError:
        package = None
    theirs: Any = package

    def other(name: str, **options: Any) -> Map | None:
        return partial(getattr(theirs, name), dim=-1, **options) if package else None

    yield "sparsemax", F.sparsemax, other("sparsemax")
    yield "entmax 1.5", partial(F.entmax, alpha=1.5), other("entmax15")
    for alpha in (1.25, 1.75, 3.0):
        yield (
            f"entmax {alpha:g}",
            partial(F.entmax, alpha=alpha),
            other("entmax_bisect", alpha=alpha),
        )
    for alpha in (2.0, 5.0):
        ours = partial(F.normmax, alpha=alpha)
        yield f"normmax {alpha:g}", ours, other("normmax_bisect", alpha=alpha)
    for k in (2, 8):
        yield f"ksubsets {k}", partial(F.ksubsets, k=k), other("budget_bisect", budget=k)
    for k in (2, 8):
        yield f"entropic ksubsets {k}", partial(F.entropic_ksubsets, k=k), None
    for upper in (0.5, 0.1):
        yield f"capped sparsemax {upper:g}", partial(F.capped_sparsemax, upper=upper), None
    yield "capped sparsemax, bounds of entries", _capped_by_entries, None


def _capped_by_entries(scores: Tensor) -> Tensor:
    """Bounds between 0.02 and 0.22, another one for each column."""
    bounds = torch.linspace(0, 100, scores.shape[-1], dtype=scores.dtype).sin().square()
    return F.capped_sparsemax(scores, 0.2 * bounds + 0.02)


def _bench_one(name: str, ours: Map, theirs: Map | None, progress: Callable[[str], None]) -> MapRow:
    forward, both, faster, errors = [], [], [], []
    for rows, size in SHAPES:
        for scale in SCALES:
            progress(f"{name} on {rows} x {size}, scores times {scale:g}")
            torch.manual_seed(0)
            scores = torch.randn(rows, size) * scale
            errors.append(_check(name, ours, scores))
            softmax = partial(torch.softmax, scores, -1)
            times = best_times({"softmax": softmax, "ours": partial(ours, scores)})
            forward.append(times["ours"] / times["softmax"])
            both.append(_forward_backward_ratio(ours, scores))
            if theirs is not None:  # so slow that it need not be interleaved
                slow = best_times({"theirs": partial(theirs, scores)}, rounds=3, in_a_row=1)
                faster.append(slow["theirs"] / times["ours"])
    small = torch.randn(32, 64)
    call = best_times({"ours": lambda: ours(small)}, rounds=500)["ours"]
    return MapRow(
        name=name,
        forward=geometric_mean(forward),
        forward_backward=geometric_mean(both),
        faster_than_entmax=geometric_mean(faster) if faster else None,
        small_call_microseconds=call * 1e6,
        worst_error=max(errors),
    )


def _check(name: str, ours: Map, scores: Tensor) -> float:
    """Largest deviation from the same map in float64 by the torch reference."""
    rows = scores[:16]
    with hopfy.use_backend("reference"):
        expected = ours(rows.double())
    error = float((ours(rows).double() - expected).abs().max())
    if not error <= 5e-6:
        raise AssertionError(f"{name} is off by {error:.1e}: no speed is reported for it")
    return error


def _forward_backward_ratio(ours: Map, scores: Tensor) -> float:
    cotangent = torch.randn_like(scores)
    leaf = scores.clone().requires_grad_()

    def run(map: Map) -> None:
        leaf.grad = None
        torch.autograd.backward(map(leaf), cotangent)

    times = best_times(
        {"softmax": lambda: run(partial(torch.softmax, dim=-1)), "ours": lambda: run(ours)}
    )
    return times["ours"] / times["softmax"]
