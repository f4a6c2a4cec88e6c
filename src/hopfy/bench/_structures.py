"""SparseMAP over trees, matchings and chains, beside the marginals of torch_struct.

That package has Gibbs distributions over chains and trees; matchings have no tractable one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.bench._timing import best_times
from hopfy.structures import Chain, Matching, Structure, Tree

__all__ = ["StructureRow", "bench_structures"]


@dataclass(frozen=True)
class StructureRow:
    """One structure: time per row, and how it went."""

    name: str
    rows: int
    shape: tuple[int, ...]
    milliseconds: float  # per row, forward
    both_milliseconds: float  # per row, forward and backward
    torch_struct: float  # the same for the marginals of torch_struct; NaN if there are none
    oracle_microseconds: float  # one MAP call, per row
    gap: float  # largest duality gap, as a share of the objective


def _cases() -> list[tuple[str, Structure, int, tuple[int, ...]]]:
    draw = torch.Generator().manual_seed(0)
    return [
        ("matching", Matching(), 32, (16, 16)),
        ("matching", Matching(), 32, (32, 32)),
        ("tree", Tree(), 32, (20, 20)),
        ("projective tree", Tree(projective=True), 32, (20, 20)),
        ("chain", Chain(torch.randn(10, 10, generator=draw)), 64, (50, 10)),
        ("chain", Chain(torch.randn(20, 20, generator=draw)), 32, (40, 20)),
        ("chain", Chain(torch.randn(50, 50, generator=draw)), 1, (2000, 50)),
    ]


def bench_structures(progress: Callable[[str], None] = lambda _: None) -> list[StructureRow]:
    """Measure the processor time for standard-normal scores; every answer is checked first."""
    rows = []
    for name, structure, count, shape in _cases():
        progress(f"SparseMAP over {name} {shape}")
        rows.append(_bench_one(name, structure, count, shape))
    return rows


def _relative_gap(scores: Tensor, structure: Structure) -> float:
    """How much better the best structure is for the gradient, as a share of the objective."""
    exact = scores.double()
    y, factors = structure.marginals(exact)
    rows = structure.rows(exact)
    best = structure.argmax(exact - y)
    bits = structure.factors_of(best, rows).reshape(len(scores), -1)
    lead = ((exact - y) * (best - y)).flatten(1).sum(1)
    lead = lead + (rows.factor_scores * (bits - factors.reshape(bits.shape))).sum(1)
    objective = (exact * y).flatten(1).sum(1).abs().clamp_min(1)
    return float((lead.abs() / objective).max())


def _torch_struct(structure: Structure, scores: Tensor) -> Callable[[], object] | None:
    """Marginals of the Gibbs distribution and their gradient, where the package has them."""
    try:
        import torch_struct
    except ImportError:
        return None
    leaf = scores.clone().requires_grad_()
    cotangent = torch.randn_like(scores)
    trees = {
        Tree().name: torch_struct.NonProjectiveDependencyCRF,
        Tree(projective=True).name: torch_struct.DependencyCRF,
    }.get(structure.name)
    if trees is not None:

        def of_trees() -> object:  # its rows are the heads
            return torch.autograd.grad(trees(leaf.mT).marginals, leaf, cotangent.mT)

        return of_trees
    table = structure.tensors().get("transition")
    if table is None:
        return None

    def of_chains() -> object:
        potentials = leaf[:, 1:, :, None] + table
        first = torch.zeros_like(potentials[:, 1:])
        potentials = potentials + torch.cat(
            [leaf[:, :1, None, :].expand_as(potentials[:, :1]), first], 1
        )
        pairs = torch_struct.LinearChainCRF(potentials).marginals
        return torch.autograd.grad((pairs.sum(-1) * cotangent[:, 1:]).sum(), leaf)

    return of_chains


def _bench_one(name: str, structure: Structure, count: int, shape: tuple[int, ...]) -> StructureRow:
    scores = torch.randn(count, *shape, generator=torch.Generator().manual_seed(shape[0]))
    gap = _relative_gap(scores, structure)
    if not gap < 1e-6:
        raise RuntimeError(f"SparseMAP over {name} {shape} did not converge: gap {gap:.1e}.")
    leaf = scores.clone().requires_grad_()
    cotangent = torch.randn_like(scores)
    contestants: dict[str, Callable[[], object]] = {
        "forward": lambda: F.sparsemap(scores, structure),
        "both": lambda: torch.autograd.grad(F.sparsemap(leaf, structure), leaf, cotangent),
        "oracle": lambda: structure.argmax(scores),
    }
    # The long chain takes torch_struct minutes.
    other = _torch_struct(structure, scores) if scores[0].numel() < 10_000 else None
    if other is not None:
        contestants["torch_struct"] = other
    times = best_times(contestants, rounds=6, in_a_row=2, clock=time.process_time)
    return StructureRow(
        name,
        count,
        shape,
        1e3 * times["forward"] / count,
        1e3 * times["both"] / count,
        1e3 * times.get("torch_struct", math.nan) / count,
        1e6 * times["oracle"] / count,
        gap,
    )
