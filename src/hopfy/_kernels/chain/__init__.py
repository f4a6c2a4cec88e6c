r"""SparseMAP over chains of states, with transition scores.

.. math:: \arg\max_{(y, z)} \langle\theta, y\rangle + \langle T, z\rangle - \tfrac12 \|y\|^2

over mixtures of paths, where :math:`z_{i,a,b}` is the probability of going from state a at position i
to b at i + 1. The method is told in `hopfy._kernels.chain.cpu`; without numba, the general
active-set method of `hopfy._kernels.active_set` solves chains.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._runtime.compilation import compiled
from hopfy._runtime.threads import over_rows

__all__ = ["Solution", "is_available", "pairs", "product", "solve"]


class Solution(NamedTuple):
    """What `solve` found, and what `product` and `pairs` need of it."""

    y: Tensor  # (R, N, S) marginals
    ended: Tensor  # (R) int64: 0 converged, 1 out of iterations, 2 no path is feasible
    gap: Tensor  # (R) duality gap
    calls: Tensor  # (R) how often a best path was searched
    counts: Tensor  # (R, N - 1) transitions in use at each edge
    used: Tensor  # int32: these, as a * S + b, of all edges one after the other
    flows: Tensor  # their marginals


def is_available() -> bool:
    """Whether the compiled loops can be used."""
    return compiled("chain.cpu") is not None


def solve(scores: Tensor, transition: Tensor, tol: float, max_steps: int) -> Solution:
    """Solve scores (R, N, S) with transitions (R or 1, N - 1 or 1, S, S), all contiguous float64."""
    loops = compiled("chain.cpu")
    assert loops is not None
    rows, length, states = scores.shape
    y = torch.empty(scores.shape, dtype=torch.float64, device="cpu")
    ended = torch.empty(rows, dtype=torch.int64, device="cpu")
    gap = torch.empty(rows, dtype=torch.float64, device="cpu")
    calls = torch.empty(rows, dtype=torch.int64, device="cpu")
    counts = torch.empty(rows, length - 1, dtype=torch.int64, device="cpu")
    inputs = (scores.numpy(), transition.numpy(), tol, max_steps)
    answers = [part.numpy() for part in (y, ended, gap, calls, counts)]
    parts: dict[int, tuple[Tensor, ...]] = {}

    def chunk(start: int, stop: int) -> None:
        found = loops.solve_rows(start, stop, *inputs, *answers)
        parts[start] = tuple(torch.from_numpy(part) for part in found)

    over_rows(chunk, rows, 32 * scores.numel() * states)
    used, flows = (
        torch.cat(part) for part in zip(*(parts[start] for start in sorted(parts)), strict=True)
    )
    return Solution(y, ended, gap, calls, counts, used, flows)


def product(
    solution: Solution, cotangent: Tensor, in_pairs: Tensor, edges: int
) -> tuple[Tensor, Tensor]:
    """The symmetric Jacobian times cotangents of marginals (R, N, S) and pairs (R or 1, E, S, S).

    Pairs leave as (R, ``edges``, S, S): 0 for none, 1 for the sum over all, N - 1 for each.
    """
    loops = compiled("chain.cpu")
    assert loops is not None
    rows, _, states = solution.y.shape
    out = torch.empty(solution.y.shape, dtype=torch.float64, device="cpu")
    out_pairs = torch.empty(rows, edges, states, states, dtype=torch.float64, device="cpu")
    sizes = solution.counts.sum(1)
    over_rows(
        loops.product_rows,
        rows,
        8 * out.numel() + out_pairs.numel(),
        solution.y.numpy(),
        solution.counts.numpy(),
        (sizes.cumsum(0) - sizes).numpy(),
        solution.used.numpy(),
        cotangent.numpy(),
        in_pairs.numpy(),
        out.numpy(),
        out_pairs.numpy(),
    )
    return out, out_pairs


def pairs(solution: Solution) -> Tensor:
    """The marginals (R, N - 1, S, S) of the transitions."""
    rows, length, states = solution.y.shape
    edge = torch.arange(rows * (length - 1), device="cpu").repeat_interleave(
        solution.counts.flatten()
    )
    found = torch.zeros(rows * (length - 1), states * states, dtype=torch.float64, device="cpu")
    found[edge, solution.used.long()] = solution.flows
    return found.reshape(rows, length - 1, states, states)
