"""Sequential k-subsets against the figures of the C++ library behind the paper's own code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.bench._timing import best_times
from hopfy.structures import SequentialKSubsets

__all__ = ["SequentialRow", "bench_sequential"]

_TRANSITION = 0.5

# Rows, N, k, and the milliseconds per row of the C++ library, recorded once on two cores. For the
# last two sizes it was stopped after 100 iterations, far from converged.
_SIZES = [(64, 20, 2, 0.32), (64, 128, 13, 5.4), (64, 512, 50, 75.0), (8, 4096, 100, 1370.0)]


@dataclass(frozen=True)
class SequentialRow:
    """One size: time per row, and how it went."""

    n: int
    k: int
    microseconds: float  # per row, forward
    forward_backward: float  # in units of the forward pass
    faster_than_cpp: float  # ratio to the library's recorded figure, not run here
    relative_gap: float  # largest duality gap, as a share of the objective


def bench_sequential(progress: Callable[[str], None] = lambda _: None) -> list[SequentialRow]:
    """Measure standard-normal scores times 2 with transition 0.5; every answer is checked first."""
    rows = []
    for batch, n, k, recorded in _SIZES:
        progress(f"sequential k-subsets, N = {n}, k = {k}")
        rows.append(_bench_one(batch, n, k, recorded))
    return rows


def _bench_one(batch: int, n: int, k: int, recorded: float) -> SequentialRow:
    scores = torch.randn(batch, n, generator=torch.Generator().manual_seed(n)) * 2
    gap = _relative_gap(scores[:4].double(), SequentialKSubsets(k, _TRANSITION))
    if not gap < 1e-6:
        raise RuntimeError(f"sequential k-subsets did not converge at N = {n}: gap {gap:.1e}.")
    leaf = scores.clone().requires_grad_()
    cotangent = torch.randn_like(scores)
    times = best_times(
        {
            "forward": lambda: F.sequential_ksubsets(scores, k, _TRANSITION),
            "both": lambda: torch.autograd.grad(
                F.sequential_ksubsets(leaf, k, _TRANSITION), leaf, cotangent
            ),
        },
        rounds=50,
    )
    return SequentialRow(
        n,
        k,
        1e6 * times["forward"] / batch,
        times["both"] / times["forward"],
        recorded * 1e-3 * batch / times["forward"],
        gap,
    )


def _relative_gap(scores: Tensor, structure: SequentialKSubsets) -> float:
    """What the best subset gains to first order: found by a MAP oracle that the solver lacks."""
    weights, tables = structure.marginals(scores)
    gradient = scores - structure.slope(weights)
    best = structure.argmax(gradient).to(scores.dtype)
    both = (best[:, 1:] * best[:, :-1]).sum(-1) - tables[..., 1, 1].sum(-1)
    gain = (gradient * (best - weights)).sum(-1) + _TRANSITION * both
    reward = (scores * weights).sum(-1) + _TRANSITION * tables[..., 1, 1].sum(-1)
    objective = reward - structure.regularizer(weights)
    return float((gain.abs() / objective.abs().clamp_min(1.0)).max())
