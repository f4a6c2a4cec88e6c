"""The general SparseMAP solver over trees, matchings and chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hopfy import functional as F
from hopfy.bench._timing import best_times
from hopfy.structures import Chain, Matching, Structure, Tree

__all__ = ["StructureRow", "bench_structures"]

_ROWS = 64


@dataclass(frozen=True)
class StructureRow:
    """One structure: time per row, and how it went."""

    name: str
    shape: tuple[int, ...]
    milliseconds: float  # per row, forward
    forward_backward: float  # in units of the forward pass
    oracle_microseconds: float  # one MAP call, per row
    iterations: float  # mean oracle calls
    vertices: float  # mean size of the active set
    gap: float  # largest duality gap, as a share of the objective


def _cases() -> list[tuple[str, Structure, tuple[int, ...]]]:
    transition = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    return [
        ("matching", Matching(), (16, 16)),
        ("matching", Matching(), (32, 32)),
        ("tree", Tree(), (20, 20)),
        ("projective tree", Tree(projective=True), (20, 20)),
        ("chain", Chain(transition), (50, 10)),
    ]


def bench_structures(progress: Callable[[str], None] = lambda _: None) -> list[StructureRow]:
    """Measure standard-normal scores, 64 rows at a time; every answer is checked first."""
    rows = []
    for name, structure, shape in _cases():
        progress(f"SparseMAP over {name} {shape}")
        rows.append(_bench_one(name, structure, shape))
    return rows


def _bench_one(name: str, structure: Structure, shape: tuple[int, ...]) -> StructureRow:
    scores = torch.randn(_ROWS, *shape, generator=torch.Generator().manual_seed(shape[0]))
    solution = F.sparsemap_solution(scores, structure)
    objective = (scores * solution.marginals).flatten(1).sum(1).abs().clamp_min(1)
    gap = float((solution.gap / objective).max())
    if not gap < 1e-6:
        raise RuntimeError(f"SparseMAP over {name} {shape} did not converge: gap {gap:.1e}.")
    leaf = scores.clone().requires_grad_()
    cotangent = torch.randn_like(scores)
    times = best_times(
        {
            "forward": lambda: F.sparsemap(scores, structure),
            "both": lambda: torch.autograd.grad(F.sparsemap(leaf, structure), leaf, cotangent),
            "oracle": lambda: structure.argmax(scores),
        }
    )
    return StructureRow(
        name,
        shape,
        1e3 * times["forward"] / _ROWS,
        times["both"] / times["forward"],
        1e6 * times["oracle"] / _ROWS,
        solution.iterations.double().mean().item(),
        solution.support_size.double().mean().item(),
        gap,
    )
