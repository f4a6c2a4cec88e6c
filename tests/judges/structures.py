"""Every structure of a small problem, by brute force, and a QP solver over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor


def subsets(size: int, counts: range) -> Tensor:
    every = itertools.product((0.0, 1.0), repeat=size)
    return torch.tensor([bits for bits in every if sum(bits) in counts]).reshape(-1, size).double()


def paths(length: int, states: int) -> Tensor:
    """One-hot (V, N, S)."""
    every = list(itertools.product(range(states), repeat=length))
    return torch.nn.functional.one_hot(torch.tensor(every), states).double()


def matchings(rows: int, columns: int) -> Tensor:
    if rows > columns:
        return matchings(columns, rows).mT
    found = torch.zeros(0, rows, columns).double()
    for chosen in itertools.permutations(range(columns), rows):
        one = torch.zeros(1, rows, columns).double()
        one[0, range(rows), chosen] = 1
        found = torch.cat([found, one])
    return found


def trees(words: int, *, projective: bool, single_root: bool) -> Tensor:
    return torch.stack(list(_trees(words, projective, single_root)))


def _trees(words: int, projective: bool, single_root: bool) -> Iterator[Tensor]:
    for heads in itertools.product(range(words + 1), repeat=words):
        if any(_chain_length(heads, word) > words for word in range(words)):
            continue
        if single_root and heads.count(0) != 1:
            continue
        if projective and _crosses(heads):
            continue
        arcs = torch.zeros(words, words).double()
        for word, head in enumerate(heads):
            arcs[word, head - 1 if head else word] = 1
        yield arcs


def _chain_length(heads: tuple[int, ...], word: int) -> int:
    steps = 0
    while heads[word] and steps <= len(heads):
        word, steps = heads[word] - 1, steps + 1
    return steps


def _crosses(heads: tuple[int, ...]) -> bool:
    arcs = [(min(w + 1, h), max(w + 1, h)) for w, h in enumerate(heads)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


def edge_tables(bits: Tensor) -> Tensor:
    """One-hot tables (V, (N - 1) * 4) of neighboring bits (V, N)."""
    pair = (2 * bits[:, :-1] + bits[:, 1:]).long()
    return torch.nn.functional.one_hot(pair, 4).flatten(1).double()


def path_edges(path: Tensor) -> Tensor:
    """One-hot (V, (N - 1) * S * S) of a path (V, N, S)."""
    return torch.einsum("vna,vnb->vnab", path[:, :-1], path[:, 1:]).flatten(1)


def values(vertices: Tensor, factors: Tensor, scores: Tensor, factor_scores: Tensor) -> Tensor:
    """The score of each vertex (V, n), -inf where it selects an entry that is not allowed."""
    unary = torch.where(vertices > 0, scores, 0.0).sum(1)
    return unary + torch.where(factors > 0, factor_scores, 0.0).sum(1)


def qp(
    vertices: Tensor, factors: Tensor, scores: Tensor, factor_scores: Tensor, curvature: float = 1.0
) -> tuple[Tensor, float]:
    """Marginals (n,) and the objective of SparseMAP over the given vertices, by Clarabel."""
    score = values(vertices, factors, scores, factor_scores)
    allowed = score > -torch.inf
    A, linear = vertices[allowed].numpy(), score[allowed].numpy()
    p = cp.Variable(len(linear), nonneg=True)
    objective = linear @ p - curvature / 2 * cp.sum_squares(A.T @ p)
    problem = cp.Problem(cp.Maximize(objective), [cp.sum(p) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return torch.from_numpy(A.T @ np.asarray(p.value)), float(problem.value)
