"""Hard questions for certificates: patterns with near-ties, structures that can be enumerated."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from hopfy.structures import (
    AtMostK,
    Chain,
    FactorGraph,
    Grid,
    KSubsets,
    Matching,
    Oracle,
    SequentialKSubsets,
    Structure,
    Tree,
    Xor,
)
from judges import exact
from judges import structures as every

KINDS = ("at-most-k", "subsets", "chain", "tables", "tree", "matching", "interval", "pairs",
         "sequence", "edges", "graph")  # fmt: skip


@dataclass
class Case:
    """A structure over N items with all its vertices (V, N), their factor bits and factor scores."""

    structure: Structure
    vertices: Tensor
    factors: Tensor
    factor_scores: Tensor

    @property
    def size(self) -> int:
        return int(self.vertices.shape[1])

    def rooms(
        self, memories: Tensor, members: list[int], beta: float
    ) -> list[tuple[int, Fraction]]:
        bits = torch.zeros(1, self.size, dtype=torch.float64)
        bits[0, members] = 1
        slope = self.structure.slope(bits)[0]
        return exact.rooms(
            memories, members, beta, slope, self.vertices, self.factors, self.factor_scores
        )

    def is_fixed(self, memories: Tensor, members: list[int], beta: float) -> bool:
        return all(room >= 0 for _, room in self.rooms(memories, members, beta))


def patterns(rng: random.Random, count: int) -> Tensor:
    """Patterns of any dtype and scale, with ties, duplicates and nearly equal rows."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    dtype = rng.choice([torch.float16, torch.float32, torch.float64])
    x = torch.randn(count, rng.randint(1, 5), generator=generator, dtype=torch.float64)
    kind = rng.choice(["ball", "grid", "axes", "twins", "cluster", "sphere", "mixed"])
    if kind == "grid":
        x = (2 * x).round()
    elif kind == "axes":
        x = torch.eye(count, dtype=torch.float64) * rng.choice([1.0, 2.0, 0.1, 0.5, 3.0])
    elif kind == "twins":
        x[rng.randrange(count)] = x[0]
    elif kind == "cluster":
        x = x[:1] * rng.choice([1, 1600]) + 10.0 ** -rng.randint(1, 7) * x
    elif kind == "sphere":
        x = x / x.norm(dim=-1, keepdim=True)
    elif kind == "mixed":
        x = x * torch.tensor([[10.0 ** rng.randint(-6, 6)] for _ in range(count)]).double()
    scale = 10.0 ** rng.choice([0, 0, 0, -12, 12, -6, 6])
    if dtype is torch.float16:
        return x.clamp(-6e4, 6e4).to(dtype)
    return (x * scale).to(dtype)


def near(beta: float) -> list[float]:
    """A number, its two neighbors among the floats, and numbers a little and clearly above."""
    if not 1e-290 < beta < 1e290:
        return []
    return [
        beta,
        math.nextafter(beta, math.inf),
        math.nextafter(beta, 0.0),
        beta * (1 + 1e-9),
        2 * beta,
    ]


def critical_betas(case: Case, memories: Tensor, members: list[int]) -> list[float]:
    """Inverse temperatures around the smallest one that makes the set a fixed point."""
    at_zero = dict(case.rooms(memories, members, 0.0))
    at_one = dict(case.rooms(memories, members, 1.0))
    roots = [-room / (at_one[z] - room) for z, room in at_zero.items() if at_one[z] - room != 0]
    roots = [root for root in roots if 0 < root < Fraction(10) ** 290]
    return near(float(max(roots))) if roots else []


def case(rng: random.Random, kind: str) -> Case:
    """One structure of a kind, small enough to be enumerated."""
    reward = rng.choice([0.0, 0.5, 1.0, -2.0, 1e-12, -1e30, 3.0])
    return globals()["_" + kind.replace("-", "_")](rng, reward)


def _plain(structure: Structure, vertices: Tensor) -> Case:
    return Case(structure, vertices, torch.zeros(len(vertices), 0), torch.zeros(0))


def _at_most_k(rng: random.Random, _: float) -> Case:
    size = rng.randint(1, 6)
    k = rng.randint(1, size)
    return _plain(AtMostK(k), every.subsets(size, range(k + 1)))


def _subsets(rng: random.Random, _: float) -> Case:
    size = rng.randint(1, 6)
    k = rng.randint(1, size)
    return _plain(KSubsets(k), every.subsets(size, range(k, k + 1)))


def _chain(rng: random.Random, reward: float) -> Case:
    length, states = rng.randint(1, 4), rng.randint(1, 3)
    paths = every.paths(length, states)
    scores = (reward * torch.eye(states).double()).expand(length - 1, states, states).flatten()
    grid = Grid(Chain(reward), (length, states))
    return Case(grid, paths.flatten(1), every.path_edges(paths), scores)


def _tables(rng: random.Random, _: float) -> Case:
    length, states = rng.randint(2, 4), rng.randint(1, 3)
    table = _small(rng, length - 1, states, states)
    if rng.random() < 0.3:
        table[0, 0, 0] = -torch.inf
    paths = every.paths(length, states)
    grid = Grid(Chain(table), (length, states))
    return Case(grid, paths.flatten(1), every.path_edges(paths), table.flatten())


def _tree(rng: random.Random, _: float) -> Case:
    words, projective, single = rng.randint(1, 3), rng.random() < 0.5, rng.random() < 0.5
    trees = every.trees(words, projective=projective, single_root=single)
    return _plain(Grid(Tree(projective, single), (words, words)), trees.flatten(1))


def _matching(rng: random.Random, _: float) -> Case:
    rows, columns = rng.randint(1, 3), rng.randint(1, 4)
    return _plain(Grid(Matching(), (rows, columns)), every.matchings(rows, columns).flatten(1))


def _interval(rng: random.Random, _: float) -> Case:
    size = rng.randint(1, 6)
    runs = itertools.combinations(range(size + 1), 2)
    vertices = torch.stack([_run(size, begin, end) for begin, end in runs])
    return _plain(Oracle(_best_run), vertices)


def _pairs(rng: random.Random, reward: float) -> Case:
    size = rng.randint(2, 5)
    vertices = every.subsets(size, range(size + 1))
    factors = vertices[:, 1:] * vertices[:, :-1]
    scores = torch.full((size - 1,), reward, dtype=torch.float64)

    def best(unary: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        place = int((vertices @ unary + factors @ pairs).argmax())
        return vertices[place], factors[place]

    return Case(Oracle(best, scores), vertices, factors, scores)


def _sequence(rng: random.Random, reward: float) -> Case:
    size = rng.randint(2, 6)
    k = rng.randint(1, size)
    vertices = every.subsets(size, range(k, k + 1))
    scores = torch.tensor([0, 0, 0, reward], dtype=torch.float64).repeat(size - 1)
    return Case(SequentialKSubsets(k, reward), vertices, every.edge_tables(vertices), scores)


def _edges(rng: random.Random, _: float) -> Case:
    size = rng.randint(2, 5)
    k = rng.randint(1, size)
    table = _small(rng, size - 1, 2, 2)
    vertices = every.subsets(size, range(k, k + 1))
    edges = every.edge_tables(vertices)
    return Case(SequentialKSubsets(k, table), vertices, edges, table.flatten())


def _graph(rng: random.Random, _: float) -> Case:
    vertices = every.subsets(rng.randint(3, 6), range(7))
    return _plain(FactorGraph([Xor([0, 1])]), vertices[vertices[:, 0] + vertices[:, 1] == 1])


def _small(rng: random.Random, *shape: int) -> Tensor:
    """Multiples of one half."""
    numbers = [rng.randint(-8, 8) / 2 for _ in range(math.prod(shape))]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def _run(size: int, begin: int, end: int) -> Tensor:
    bits = torch.zeros(size, dtype=torch.float64)
    bits[begin:end] = 1
    return bits


def _best_run(scores: Tensor) -> Tensor:
    sums = [0.0, *itertools.accumulate(scores.tolist())]
    runs = itertools.combinations(range(len(sums)), 2)
    begin, end = max(runs, key=lambda run: sums[run[1]] - sums[run[0]])
    return _run(len(scores), begin, end)
