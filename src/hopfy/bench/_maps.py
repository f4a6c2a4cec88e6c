"""The maps against `torch.softmax` and against the PyPI package ``entmax``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.bench._timing import best_times, geometric_mean

__all__ = ["MAP_PARTS", "MapRow", "bench_maps"]

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
    return [_bench_one(one, progress) for one in _contestants()]


class _Contestant(NamedTuple):
    """A map, and its function in the package ``entmax`` with that function's options."""

    name: str
    ours: Map
    theirs: str | None = None
    options: dict[str, float] = {}  # noqa: RUF012

    def other(self) -> Map | None:
        """The package's function, if there is one and the package is installed."""
        if self.theirs is None:
            return None
        try:
            import entmax as package
        except ImportError:
            return None
        return partial(getattr(package, self.theirs), dim=-1, **self.options)


def _contestants() -> Iterator[_Contestant]:
    yield _Contestant("sparsemax", F.sparsemax, "sparsemax")
    yield _Contestant("entmax 1.5", partial(F.entmax, alpha=1.5), "entmax15")
    for alpha in (1.25, 1.75, 3.0):
        own = partial(F.entmax, alpha=alpha)
        yield _Contestant(f"entmax {alpha:g}", own, "entmax_bisect", {"alpha": alpha})
    for alpha in (2.0, 5.0):
        own = partial(F.normmax, alpha=alpha)
        yield _Contestant(f"normmax {alpha:g}", own, "normmax_bisect", {"alpha": alpha})
    for k in (2, 8):
        own = partial(F.ksubsets, k=k)
        yield _Contestant(f"ksubsets {k}", own, "budget_bisect", {"budget": k})
    for k in (2, 8):
        yield _Contestant(f"entropic ksubsets {k}", partial(F.entropic_ksubsets, k=k))
    for upper in (0.5, 0.1):
        own = partial(F.capped_sparsemax, upper=upper)
        yield _Contestant(f"capped sparsemax {upper:g}", own)
    yield _Contestant("capped sparsemax, bounds of entries", _capped_by_entries)


def _capped_by_entries(scores: Tensor) -> Tensor:
    """Bounds between 0.02 and 0.22, another one for each column."""
    bounds = torch.linspace(0, 100, scores.shape[-1], dtype=scores.dtype).sin().square()
    return F.capped_sparsemax(scores, 0.2 * bounds + 0.02)


def _bench_one(one: _Contestant, progress: Callable[[str], None] = lambda _: None) -> MapRow:
    name, ours, theirs = one.name, one.ours, one.other()
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


def _part(one: _Contestant) -> list[MapRow]:
    return [_bench_one(one)]


MAP_PARTS = {
    one.name.replace(",", "").replace(" ", "-"): partial(_part, one) for one in _contestants()
}
