"""What a set of structures must say about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import check_range, masked, one_hot
from hopfy._facts import Described, IndexTarget, Reach
from hopfy._runtime.transfer import to_host

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Rows", "Structure", "flat_rows", "one_per_row"]


class Rows(NamedTuple):
    """A batch flattened to R problems, each with all that its oracle needs."""

    scores: Tensor  # (R, *event) float64; -inf where an entry may not be selected
    factor_scores: Tensor  # (R, f) float64; f = 0 where there are no higher-order terms
    data: tuple[Tensor, ...]  # (R, ...) each: parameters such as a budget
    place: Tensor  # (R,): the place of each row in the flattened batch
    batch: torch.Size  # the shape of the batch
    parts: tuple[Rows, ...] = ()  # the problems of the factors of a factor graph

    def take(self, which: Tensor, scores: Tensor | None = None) -> Rows:
        """Some of the rows, with these scores in place of their own if given."""
        return Rows(
            self.scores[which] if scores is None else scores,
            self.factor_scores[which],
            tuple(part[which] for part in self.data),
            self.place[which],
            self.batch,
            tuple(part.take(which) for part in self.parts),
        )

    def detached(self) -> Rows:
        """The same on the CPU, outside any graph."""
        scores, factor_scores = to_host(self.scores, self.factor_scores)
        parts = tuple(part.detached() for part in self.parts)
        return self._replace(scores=scores, factor_scores=factor_scores, parts=parts)

    def name(self, row: int) -> str:
        """How an error names a row: its index in the batch."""
        if not self.batch:
            return "the only row"
        where = torch.unravel_index(self.place[row], self.batch)
        return "row " + ", ".join(str(int(i)) for i in where)


class Structure(Described, ABC):
    r"""A set of bit vectors :math:`[y_V; y_F]`, known by its best-scoring member.

    A subclass writes `oracle`, and, where it has higher-order scores or parameters, `rows`. The
    trailing ``event_dims`` dimensions of the scores hold one problem: 1 for a set of N items, 2 for the
    arcs of a tree. `hopfy.functional.sparsemap` does the rest: marginals, gradients, batches, masks.

    Generic code asks the questions below, whose defaults are safe for any structure: the ones of
    `hopfy.Omega` (``spec``, ``tensors``, ``varies_by_row``, ``reach``, ``exact_margin``,
    ``largest_mass``, ``clip``, ``target_from``, ``violation``) and ``solve``, ``marginals``,
    ``has_factors``.

    The regularizer is :math:`\tfrac{c}{2}\|y_V\|^2` with the ``curvature`` c, which is 1 unless each bit
    counts with both of its states (`SequentialKSubsets`).

    >>> import torch, hopfy
    >>> from hopfy.structures import Rows, Structure
    >>> class Prefixes(Structure):  # the first few items, however many
    ...     def oracle(self, rows: Rows):
    ...         totals = torch.nn.functional.pad(rows.scores.cumsum(1), (1, 0))
    ...         length = totals.argmax(1, keepdim=True)
    ...         bits = torch.arange(rows.scores.shape[1]) < length
    ...         return bits.to(torch.int8), torch.zeros(len(bits), 0, dtype=torch.int8)
    >>> hopfy.functional.sparsemap(torch.tensor([0.9, 0.3, 0.6, -1.0]), Prefixes())
    tensor([0.9000, 0.4500, 0.4500, 0.0000])
    """

    event_dims: int = 1
    curvature: float = 1.0
    is_factor_graph: bool = False  # whether its polytope is the intersection of its factors'

    @abstractmethod
    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The best structure of each row: bits (R, *event) and factor bits (R, f), both int8.

        It never selects an entry whose score is -inf; a row without a structure is all -1.
        """

    @property
    def oracle_key(self) -> Hashable:
        """Structures with equal keys share an oracle: they differ in what `rows` returns only."""
        return id(self)

    def rows(self, scores: Tensor) -> Rows:
        """The problems in scores (..., *event): flattened, checked, with parameters beside them."""
        return flat_rows(scores, self.event_dims)

    def factor_shape(self, event: torch.Size) -> tuple[int, ...] | None:  # noqa: ARG002
        """The shape of one row's factor scores given that of its scores, if they have one."""
        return None

    def factors_of(self, bits: Tensor, rows: Rows) -> Tensor:
        """Factor bits (R, f) that belong to the bits (R, *event) of a structure."""
        if rows.factor_scores.shape[-1]:
            raise NotImplementedError(
                f"expected {type(self).__name__}.factors_of to say which factor bits belong to a "
                "structure; write it, or pass factor_target to the loss."
            )
        return rows.factor_scores.new_zeros((bits.shape[0], 0))

    def regularizer(self, weights: Tensor) -> Tensor:
        r""":math:`\Omega(y)`, reduced over the trailing ``event_dims`` dimensions."""
        return self.curvature / 2 * weights.square().sum(self.event_axes)

    def slope(self, weights: Tensor) -> Tensor:
        r"""The gradient :math:`\nabla\Omega(y)` of the regularizer, shaped like the weights."""
        return self.curvature * weights

    # ------------------------------------------------------------------ facts, with safe defaults

    @property
    def has_factors(self) -> bool:
        """Whether there may be higher-order scores, so that Omega is more than its value at y_V."""
        return True

    @property
    def has_exact_oracle(self) -> bool:
        """Whether `oracle` finds a best structure for all scores, up to rounding."""
        return True

    @property
    def has_fixed_mass(self) -> bool:
        """Whether all structures have as many bits, so that a constant added to a row changes nothing."""
        return False

    @property
    def merges_by_support(self) -> bool:
        """Whether parts can be merged by their supports (see `hopfy.Omega.merges_by_support`)."""
        return False

    def reach(self) -> Reach | None:
        """Where the support must lie (see `hopfy.Omega.reach`); only with a fixed mass."""
        return None

    def exact_margin(self, size: int) -> Fraction | None:  # noqa: ARG002
        """The lead of the weakest member of a set of ``size`` over all others that makes it exact."""
        return None

    @property
    def largest_mass(self) -> float | Tensor | None:
        """The most bits that a structure has; None: not known."""
        return None

    def clip(self, counts: int | Tensor) -> Self:  # noqa: ARG002
        """The same structures for rows with only ``counts`` (broadcasts to (..., 1)) entries."""
        return self

    def scale_factors(self, scale: float | Tensor) -> Structure:  # noqa: ARG002
        """The same structures with higher-order scores times ``scale``, a number or one per row (B, 1)."""
        if self.has_factors and self.tensors():
            raise NotImplementedError(
                f"expected {type(self).__name__} to have a method scale_factors, as its parameters may "
                "be factor scores, got none; write it, returning a structure with scaled ones."
            )
        return self

    def solve(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor | None:  # noqa: ARG002
        """SparseMAP by the exact solver this structure has; None: it has only its oracle."""
        return None

    def marginals(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """SparseMAP marginals (..., *event) and those of the factors, both differentiable."""
        solution = F.sparsemap_solution(scores, self)
        return solution.marginals, solution.factor_marginals

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:  # noqa: ARG002
        """How far weights (..., *event) are outside the hull of the structures, as far as is known."""
        weights = weights.detach()
        return torch.maximum(-weights, weights - 1).clamp_min(0).amax(self.event_axes)

    def target_from(self, indices: Tensor, scores: Tensor, ignore_index: int) -> IndexTarget:
        """Integer targets as bits; here, of one dimension: index lists (..., k) or 0/1 rows.

        In a row of zeros and ones ``ignore_index`` removes the entry; in an index list it is padding.
        """
        if self.event_dims != 1:
            raise TypeError(
                f"expected a target of zeros and ones shaped like the scores {tuple(scores.shape)} "
                f"for {type(self).__name__}, got integers of shape {tuple(indices.shape)}."
            )
        return _sets_from(indices, scores, ignore_index)

    @property
    def closed_form(self) -> tuple[str, float | Tensor] | None:
        """The closed form of SparseMAP over it, see `hopfy.Omega.closed_form`; None if it has none."""
        return None

    @property
    def margin(self) -> float:
        """The structured margin (Prop. 4): 1 if all structures have as many bits."""
        return 1.0

    @property
    def event_axes(self) -> tuple[int, ...]:
        """The trailing dimensions of one problem, as negative numbers."""
        return tuple(range(-self.event_dims, 0))

    def argmax(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""The best structure of each row, as zeros and ones like the scores:
        :math:`\arg\max_{y \in \mathcal Y} \theta_V^\top y_V + \theta_F^\top y_F` (Eq. 21).

        Rows with nothing to select give zeros; NaN or +inf make their own row NaN.
        """
        scores = masked(scores, mask)
        rows = self.rows(scores.detach()).detached()
        whole = torch.cat([rows.scores.flatten(1), rows.factor_scores], 1)
        spoiled = (whole.isnan() | (whole == torch.inf)).any(1)
        live = (rows.scores > -torch.inf).flatten(1).any(1) & ~spoiled
        bits = torch.zeros(rows.scores.shape, dtype=torch.int8, device="cpu")
        if bool(live.any()):
            rows = rows.take(live.nonzero()[:, 0])
            bits[live] = self.feasible(rows, self.oracle(rows))[0].reshape(bits[live].shape)
        found = bits.to(scores)
        found[spoiled] = torch.nan
        return found.reshape(scores.shape)

    def feasible(self, rows: Rows, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What the oracle found, or an error about the first row that has no structure."""
        bits, factors = found[0].flatten(1), found[1]
        chosen = torch.where(bits != 0, rows.scores.flatten(1), 0.0).sum(1)
        if factors.shape[1]:
            chosen = chosen + torch.where(factors != 0, rows.factor_scores, 0.0).sum(1)
        wrong = (bits < 0).any(1) | (chosen == -torch.inf)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"expected a feasible structure of {type(self).__name__} in each row, got none in "
                f"{rows.name(row)}: its mask (or scores of -inf) rules all of them out; allow more "
                "entries or change the structure."
            )
        return found


def one_per_row(indices: Tensor, scores: Tensor, ignore_index: int, what: str) -> IndexTarget:
    """One chosen column in each row of scores (..., rows, columns); ignored rows are not there."""
    if indices.shape != scores.shape[:-1] or indices.dtype is torch.bool:
        raise ValueError(
            f"expected {what} as integers of shape {tuple(scores.shape[:-1])}, or weights of shape "
            f"{tuple(scores.shape)}, got {indices.dtype} of shape {tuple(indices.shape)}."
        )
    bits = one_hot(indices, scores, scores.ndim - 1, ignore_index, what)
    return IndexTarget(bits, (indices != ignore_index).unsqueeze(-1))


def _sets_from(indices: Tensor, scores: Tensor, ignore_index: int) -> IndexTarget:
    """Sets of entries given as 0/1 rows or as index lists."""
    ignored = indices == ignore_index
    if indices.shape == scores.shape and bool((ignored | (indices == 0) | (indices == 1)).all()):
        bits = torch.where(ignored, 0, indices.long()).to(scores.dtype)
        return IndexTarget(bits, ~ignored)
    if indices.shape[:-1] != scores.shape[:-1] or indices.dtype is torch.bool:
        raise ValueError(
            f"expected zeros and ones of shape {tuple(scores.shape)} or index lists of shape "
            f"{(*scores.shape[:-1], 'k')}, got {indices.dtype} of shape {tuple(indices.shape)}."
        )
    check_range(indices[~ignored], scores.shape[-1], "indices of entries")
    zeros = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
    counts = zeros.scatter_add(-1, indices.long() * ~ignored, (~ignored).to(zeros.dtype))
    if bool((counts > 1).any()):
        raise ValueError(
            "expected index lists without repetitions, got an index twice in one list."
        )
    return IndexTarget(counts, None)


def flat_rows(
    scores: Tensor,
    event_dims: int,
    factor_scores: Tensor | None = None,
    data: tuple[Tensor, ...] = (),
) -> Rows:
    """Rows of scores (..., *event), factor scores (..., *factor) and data (..., *any)."""
    if scores.ndim < event_dims:
        raise ValueError(
            f"expected scores with at least {event_dims} dimensions, got shape {tuple(scores.shape)}."
        )
    batch = scores.shape[: scores.ndim - event_dims]
    count = batch.numel()
    if factor_scores is None:
        factor_scores = scores.new_zeros((*batch, 0))
    size = factor_scores.shape[len(batch) :].numel()
    return Rows(
        scores.double().reshape(count, *scores.shape[len(batch) :]),
        factor_scores.double().reshape(count, size),
        tuple(part.reshape(count, *part.shape[len(batch) :]) for part in data),
        torch.arange(count, device="cpu"),
        batch,
    )
