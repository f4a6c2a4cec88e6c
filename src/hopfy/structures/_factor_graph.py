"""Factor graphs: variables, and structures over some of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hopfy._facts import Described
from hopfy.structures._at_least_one import AtLeastOne
from hopfy.structures._base import Rows, Structure, flat_rows
from hopfy.structures._configurations import Configurations
from hopfy.structures._ksubsets import AtMostK, KSubsets
from hopfy.structures._sequential import Bits

__all__ = [
    "AtMostOne",
    "Budget",
    "Dense",
    "Factor",
    "FactorGraph",
    "Or",
    "Pair",
    "Sequence",
    "Xor",
    "values",
]


class Factor(Described):
    """A structure over some of the variables of a `FactorGraph`.

    Args:
        structure: any structure, a `hopfy.structures.Oracle` for instance.
        variables: which entries of the scores it covers, in its own order.
        shape: how they are arranged, for a structure with more than one dimension, such as
            ``(n, n)`` for a tree.

    Only the set of structures counts, not the regularizer that the structure has by itself.
    """

    def __init__(
        self, structure: Structure, variables: Iterable[int], shape: tuple[int, ...] | None = None
    ) -> None:
        if not isinstance(structure, Structure):
            raise TypeError(f"expected a factor of a structure, got {structure!r}.")
        self.structure = structure
        self.variables = tuple(int(v) for v in variables)
        self.shape = shape if shape is not None else (len(self.variables),)
        name = type(self).__name__
        if len(set(self.variables)) != len(self.variables) or min(self.variables, default=-1) < 0:
            raise ValueError(
                f"expected {name} over different variables, each 0 or more, got {self.variables}."
            )
        if torch.Size(self.shape).numel() != len(self.variables):
            raise ValueError(
                f"expected a shape for the {len(self.variables)} variables of {name}, got {shape}."
            )
        if len(self.shape) != structure.event_dims:
            raise ValueError(
                f"expected a shape of {structure.event_dims} dimensions for the "
                f"{type(structure).__name__} of {name}, got {self.shape}."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.variables)}, {self.structure!r})"

    def tensors(self) -> dict[str, Tensor]:
        return self.structure.tensors()

    def scale_factors(self, scale: float | Tensor) -> Factor:
        """The same factor with its scores times ``scale``, a number or one per row (B, 1)."""
        scaled = copy.copy(self)
        scaled.structure = self.structure.scale_factors(scale)
        return scaled

    def rows(self, scores: Tensor) -> Rows:
        """The problems of this factor in the scores (..., N) of the graph."""
        mine = scores[..., list(self.variables)]
        return self.structure.rows(mine.reshape(*scores.shape[:-1], *self.shape))


class _Rule(Factor):
    """A factor that its name and its variables describe."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.variables)})"


class Xor(_Rule):
    """Exactly one of the variables is on."""

    def __init__(self, variables: Iterable[int]) -> None:
        super().__init__(KSubsets(1), variables)


class AtMostOne(_Rule):
    """One of the variables is on, or none."""

    def __init__(self, variables: Iterable[int]) -> None:
        super().__init__(AtMostK(1), variables)


class Or(_Rule):
    """At least one of the variables is on."""

    def __init__(self, variables: Iterable[int]) -> None:
        super().__init__(AtLeastOne(), variables)


class Budget(Factor):
    """Exactly k of the variables are on; ``Factor(AtMostK(k), ...)`` allows fewer."""

    def __init__(self, variables: Iterable[int], k: int) -> None:
        super().__init__(KSubsets(k), variables)
        if k > len(self.variables):
            raise ValueError(
                f"expected a budget of at most the {len(self.variables)} variables of {self!r}, got "
                f"{k}: no structure meets it."
            )


class Pair(Factor):
    """A score for two variables that are both on, or a 2 x 2 table for their states.

    Leading dimensions of the score broadcast over the rows.
    """

    def __init__(self, first: int, second: int, score: float | Tensor) -> None:
        if isinstance(score, Tensor) and score.ndim:
            score = score[..., None, :, :] if score.shape[-2:] == (2, 2) else score[..., None]
        super().__init__(Bits(transition=score), (first, second))


class Dense(Factor):
    r"""A score for every configuration of a few variables with several values each (App. C).

    Args:
        variables: for each variable v the entries of its :math:`N_v` values among the scores, for
            instance from `values`.
        table: (:math:`N_1, N_2, \ldots`) scores of the configurations; leading dimensions broadcast over
            the rows, and a tensor gets gradients. -inf forbids a configuration.

    Each variable takes exactly one value. Other factors can cover all its values, or some: they are
    entries like all others.

    >>> import torch, hopfy
    >>> from hopfy import functional as F
    >>> from hopfy.structures import Dense, FactorGraph, values
    >>> tense, person = values(3, 2)
    >>> table = torch.tensor([[0.0, 0.5], [0.5, 0.0], [0.0, 0.0]])
    >>> graph = FactorGraph([Dense([tense, person], table)])
    >>> F.sparsemap(torch.tensor([0.4, 0.3, 0.0, 0.2, 0.1]), graph)
    tensor([0.5000, 0.5000, 0.0000, 0.5000, 0.5000])
    """

    def __init__(self, variables: Iterable[Iterable[int]], table: float | Tensor = 0.0) -> None:
        groups = [tuple(int(entry) for entry in variable) for variable in variables]
        structure = Configurations(tuple(len(group) for group in groups), table)
        super().__init__(structure, (entry for group in groups for entry in group))


def values(*sizes: int) -> list[range]:
    """The entries of variables with ``sizes`` values each, one variable after the other.

    >>> from hopfy.structures import values
    >>> values(3, 2)
    [range(0, 3), range(3, 5)]
    """
    ends = list(accumulate(sizes, initial=0))
    return [range(begin, end) for begin, end in pairwise(ends)]


class Sequence(Factor):
    """Scores for neighbors along the given order of variables, with exactly k on if k is given.

    ``transition`` is what `SequentialKSubsets` takes. A factor graph counts each bit once, the map
    `hopfy.functional.sequential_ksubsets` counts both states of a bit, which doubles the regularizer:
    ``F.sequential_ksubsets(scores, k, t)`` is ``F.sparsemap(scores / 2, FactorGraph([Sequence(range(N),
    t / 2, k)]))``.
    """

    def __init__(
        self, variables: Iterable[int], transition: float | Tensor = 0.0, k: int | None = None
    ) -> None:
        super().__init__(Bits(k, transition), variables)


@dataclass(frozen=True, eq=False)
class FactorGraph(Structure):
    r"""Bits that must satisfy several factors at once, with the scores that the factors add.

    Scores are (..., N), one for each variable, and :math:`\Omega(y) = \tfrac12\|y\|^2` over the N bits.
    Factors that share no variable are solved one by one, exactly. Where factors overlap, SparseMAP
    runs over the *local polytope*: the marginals of every factor are a mixture of its structures
    and factors agree about the variables that they share (LP-SparseMAP, Niculae & Martins, 2020). It
    contains the hull of the joint structures and may be larger, as in a loop of pairs that
    frustrate each other; the answer is then the exact optimum of this relaxation.

    A variable in no factor is a free bit. ``factor_marginals`` are those of all factors in a row.

    >>> import torch, hopfy
    >>> from hopfy import functional as F
    >>> from hopfy.structures import AtMostOne, FactorGraph, Pair, Xor
    >>> graph = FactorGraph([Xor([0, 1, 2]), AtMostOne([2, 3]), Pair(0, 3, 1.0)])
    >>> F.sparsemap(torch.tensor([0.5, 0.2, 1.0, 0.3]), graph)
    tensor([0.6000, 0.0000, 0.4000, 0.6000])
    """

    factors: tuple[Factor, ...]
    is_factor_graph = True

    @property
    def has_exact_oracle(self) -> bool:
        return not self.overlaps and all(f.structure.has_exact_oracle for f in self.factors)

    @property
    def varies_by_row(self) -> bool:
        return any(factor.structure.varies_by_row for factor in self.factors)

    def __init__(self, factors: Iterable[Factor]) -> None:
        factors = tuple(factors)
        for factor in factors:
            if not isinstance(factor, Factor):
                raise TypeError(f"expected factors such as Xor([0, 1]), got {factor!r}.")
        object.__setattr__(self, "factors", factors)

    def scale_factors(self, scale: float | Tensor) -> Structure:
        return FactorGraph(factor.scale_factors(scale) for factor in self.factors)

    @cached_property
    def overlaps(self) -> bool:
        """Whether a variable belongs to more than one factor."""
        every = [variable for factor in self.factors for variable in factor.variables]
        return len(set(every)) < len(every)

    @property
    def margin(self) -> float:
        # Corners of the local polytope need not be structures: leading them all says nothing.
        if self.overlaps:
            return float("inf")
        return max((factor.structure.margin for factor in self.factors), default=2.0)

    def check_size(self, size: int) -> None:
        """Raise an error if a factor asks for a variable that there is not."""
        for factor in self.factors:
            if max(factor.variables, default=-1) >= size:
                raise ValueError(
                    f"expected variables below {size}, the number of scores of this FactorGraph, got "
                    f"{factor!r}."
                )

    def rows(self, scores: Tensor) -> Rows:
        self.check_size(scores.shape[-1])
        parts = tuple(factor.rows(scores) for factor in self.factors)
        batch = scores.shape[:-1]
        empty = scores.new_zeros((batch.numel(), 0), dtype=torch.float64)
        joined = torch.cat([empty, *(part.factor_scores for part in parts)], 1)
        whole = flat_rows(scores, 1, joined.reshape((*batch, joined.shape[1])))
        return whole._replace(parts=parts)

    def parts(self, rows: Rows) -> list[Rows]:
        """The problems of the factors, with the scores and the factor scores of the whole."""
        found, begin = [], 0
        for factor, part in zip(self.factors, rows.parts, strict=True):
            scores = rows.scores[:, list(factor.variables)].reshape(-1, *factor.shape)
            end = begin + part.factor_scores.shape[1]
            scored = rows.factor_scores[:, begin:end]
            found.append(part._replace(scores=scores, factor_scores=scored))
            begin = end
        return found

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.overlaps:
            raise ValueError(
                "expected a FactorGraph whose factors share no variables to have a MAP oracle; with "
                "factors that overlap use sparsemap, which relaxes the problem."
            )
        bits = (rows.scores > 0).to(torch.int8)
        found = [torch.zeros((bits.shape[0], 0), dtype=torch.int8, device="cpu")]
        for factor, part in zip(self.factors, self.parts(rows), strict=True):
            chosen, factors = factor.structure.feasible(part, factor.structure.oracle(part))
            bits[:, list(factor.variables)] = chosen.flatten(1)
            found.append(factors)
        return bits, torch.cat(found, 1)

    def factors_of(self, bits: Tensor, rows: Rows) -> Tensor:
        found = [rows.scores.new_zeros((bits.shape[0], 0))]
        for factor, part in zip(self.factors, self.parts(rows), strict=True):
            mine = bits[:, list(factor.variables)].reshape(-1, *factor.shape)
            found.append(factor.structure.factors_of(mine, part))
        return torch.cat(found, 1)
