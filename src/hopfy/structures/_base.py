"""What a set of structures must say about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._checks import as_mask, as_scores

__all__ = ["Rows", "Structure", "flat_rows"]


class Rows(NamedTuple):
    """A batch flattened to R problems, each with all that its oracle needs."""

    scores: Tensor  # (R, *event) float64; -inf where an entry may not be selected
    factor_scores: Tensor  # (R, f) float64; f = 0 where there are no higher-order terms
    data: tuple[Tensor, ...]  # (R, ...) each: parameters such as a budget
    index: Tensor  # (R,): the place of each row in the flattened batch
    batch: torch.Size  # the shape of the batch
    parts: tuple[Rows, ...] = ()  # the problems of the factors of a factor graph

    def take(self, which: Tensor, scores: Tensor | None = None) -> Rows:
        """Some of the rows, with these scores in place of their own if given."""
        return Rows(
            self.scores[which] if scores is None else scores,
            self.factor_scores[which],
            tuple(part[which] for part in self.data),
            self.index[which],
            self.batch,
            tuple(part.take(which) for part in self.parts),
        )

    def detached(self) -> Rows:
        """The same on the CPU, outside any graph."""
        scores, factor_scores = self.scores.detach().cpu(), self.factor_scores.detach().cpu()
        parts = tuple(part.detached() for part in self.parts)
        return self._replace(scores=scores, factor_scores=factor_scores, parts=parts)

    def name(self, row: int) -> str:
        """How an error names a row: its index in the batch."""
        if not self.batch:
            return "the only row"
        place = torch.unravel_index(self.index[row], self.batch)
        return "row " + ", ".join(str(int(i)) for i in place)


class Structure(ABC):
    r"""A set of bit vectors :math:`[y_V; y_F]`, known by its best-scoring member.

    A subclass writes `oracle`, and, where it has higher-order scores or parameters, `rows`. The
    trailing ``event_dims`` dimensions of the scores hold one problem: 1 for a set of N items, 2 for the
    arcs of a tree. `hopfy.functional.sparsemap` does the rest: marginals, gradients, batches, masks.

    The regulariser is :math:`\tfrac{c}{2}\|y_V\|^2` with the ``curvature`` c, which is 1 unless each bit
    counts with both of its states (`SequentialKSubsets`).
    """

    event_dims: int = 1
    curvature: float = 1.0

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

    def regulariser(self, weights: Tensor) -> Tensor:
        r""":math:`\Omega(y)`, reduced over the trailing ``event_dims`` dimensions."""
        return self.curvature / 2 * weights.square().sum(self.event_axes)

    @property
    def margin(self) -> float:
        """The structured margin (Prop. 4): 1 if all structures have as many bits."""
        return 1.0

    @property
    def event_axes(self) -> tuple[int, ...]:
        """The trailing dimensions of one problem, as negative numbers."""
        return tuple(range(-self.event_dims, 0))

    def argmax(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """The best structure (MAP) of each row, as zeros and ones like the scores.

        Rows with nothing to select give zeros.
        """
        scores = as_scores(scores)
        if mask is not None:
            scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
        rows = self.rows(scores.detach()).detached()
        live = (rows.scores > -torch.inf).flatten(1).any(1)
        bits = torch.zeros(rows.scores.shape, dtype=torch.int8)
        if bool(live.any()):
            rows = rows.take(live.nonzero()[:, 0])
            bits[live] = self.feasible(rows, self.oracle(rows))[0]
        return bits.reshape(scores.shape).to(scores)

    def feasible(self, rows: Rows, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What the oracle found, or a sentence about the first row that has no structure."""
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
        torch.arange(count),
        batch,
    )
