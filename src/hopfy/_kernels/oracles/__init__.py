"""The best structure of each row: tensors around the compiled searches.

Scores are float64, contiguous or not, with one leading dimension of rows. Answers are int8 bits. An
entry with score -inf is never selected; a row without a feasible structure is all -1.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor

from hopfy._runtime.threads import over_rows

__all__ = ["assignment", "bits", "chain", "top", "tree"]

# What one inner step of a search costs, in entries touched: decides about threads.
_STEP = 4


def _loops(name: str) -> ModuleType:
    """The searches: compiled, or plain Python where numba is missing."""
    return importlib.import_module(f"hopfy._kernels.oracles.{name}")


def top(scores: Tensor, k: Tensor) -> Tensor:
    """The k (R,) largest entries of each row that are above -inf."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(-1, order, torch.arange(scores.shape[-1], device="cpu").expand_as(order))
    return ((rank < k[:, None]) & (scores > -torch.inf)).to(torch.int8)


def bits(scores: Tensor, tables: Tensor, budget: Tensor) -> Tensor:
    """Bits (R, N) with edge tables (R, N - 1, 2, 2); a budget (R,) of -1 stands for none."""
    found = torch.empty(scores.shape, dtype=torch.int8, device="cpu")
    work = scores.numel() * (2 + int(budget.max()) if budget.numel() else 1) * _STEP
    over_rows(
        _loops("viterbi").best_bits,
        scores.shape[0],
        work,
        scores.contiguous().numpy(),
        tables.contiguous().numpy(),
        budget.contiguous().numpy(),
        found.numpy(),
    )
    return found


def chain(scores: Tensor, transition: Tensor) -> Tensor:
    """One-hot states (R, N, S) of scores (R, N, S) and transitions (R, N - 1, S, S)."""
    path = torch.empty(scores.shape[:2], dtype=torch.long, device="cpu")
    over_rows(
        _loops("viterbi").best_path,
        scores.shape[0],
        scores.numel() * scores.shape[-1],
        scores.contiguous().numpy(),
        transition.contiguous().numpy(),
        path.numpy(),
    )
    return (path[..., None] == torch.arange(scores.shape[-1], device="cpu")).to(torch.int8)


def tree(scores: Tensor, *, projective: bool, single_root: bool) -> Tensor:
    """Arcs (R, n, n): row = dependent, column = head, diagonal = arc from the root."""
    loops = _loops("trees")
    found = torch.empty(scores.shape, dtype=torch.int8, device="cpu")
    over_rows(
        loops.best_projective if projective else loops.best_arborescence,
        scores.shape[0],
        scores.numel() * scores.shape[-1],
        scores.contiguous().numpy(),
        single_root,
        found.numpy(),
    )
    return found


def assignment(scores: Tensor) -> Tensor:
    """Matchings (R, m, n) in which the smaller side is matched in full."""
    found = torch.empty(scores.shape, dtype=torch.int8, device="cpu")
    over_rows(
        _loops("matchings").best_assignment,
        scores.shape[0],
        scores.numel() * scores.shape[-1],
        scores.contiguous().numpy(),
        found.numpy(),
    )
    return found
