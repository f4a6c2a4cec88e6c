"""Sequential k-subsets against the figures of the C++ library behind the paper's own code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._kernels import sequential as kernel
from hopfy.bench._timing import best_times

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
    certified: float  # share of rows that the relaxation solved
    iterations: float  # mean steps of the active set in the other rows
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
    edges = torch.full((n - 1,), _TRANSITION, dtype=torch.float64)
    details = kernel.solve_details(scores, torch.tensor(k), edges)
    checked = min(batch, 4)
    gap = max(_relative_gap(scores[i].double(), k, edges, details, i) for i in range(checked))
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
    stepped = details.iterations > 0
    return SequentialRow(
        n,
        k,
        1e6 * times["forward"] / batch,
        times["both"] / times["forward"],
        recorded * 1e-3 * batch / times["forward"],
        1 - stepped.double().mean().item(),
        details.iterations[stepped].double().mean().item() if bool(stepped.any()) else 0.0,
        gap,
    )


def _relative_gap(
    scores: Tensor, k: int, edges: Tensor, details: kernel.Details, row: int
) -> float:
    """What the best subset gains to first order, by a dynamic programme that the solver lacks."""
    y, pairs = details.marginals[row], details.pairs[row]
    gradient = scores - 2 * y
    best = kernel.best_subset(gradient, edges, k)
    gain = gradient @ best + edges @ (best[1:] * best[:-1]) - (gradient @ y + edges @ pairs)
    objective = scores @ y + edges @ pairs - (y.square().sum() + (1 - y).square().sum()) / 2
    return float(gain.abs() / objective.abs().clamp_min(1.0))
