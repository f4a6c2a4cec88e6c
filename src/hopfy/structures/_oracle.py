"""A user's own structure, given by a function."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hopfy.structures._base import Rows, Structure, flat_rows

__all__ = ["Oracle"]


@dataclass(frozen=True, eq=False)
class Oracle(Structure):
    r"""The structures among which ``fn`` finds the best.

    Args:
        fn: takes the scores of one problem (a float64 tensor shaped like the trailing ``event_dims``
            dimensions, -inf where an entry may not be selected) and returns the best structure as
            zeros and ones of the same shape. With ``factor_scores`` it takes the scores and the factor
            scores and returns the pair (bits, factor bits).
        factor_scores: higher-order scores (..., f), one per factor bit; leading dimensions broadcast
            over the rows. A tensor that requires a gradient gets one.
        event_dims: how many trailing dimensions of the scores one problem has.
        batched: whether ``fn`` takes and returns all rows at once, with one leading dimension.

    Whatever has a best member is a structure. Here, intervals: any run of consecutive items, which
    Kadane's algorithm finds in one pass, so that attention becomes attention to a segment.

    >>> import torch, hopfy
    >>> from hopfy import functional as F
    >>> def best_interval(scores):
    ...     best, begin, total, answer = -float("inf"), 0, 0.0, (0, 0)
    ...     for i, score in enumerate(scores.tolist()):
    ...         if total <= 0:
    ...             begin, total = i, 0.0
    ...         total += score
    ...         if total > best:
    ...             best, answer = total, (begin, i + 1)
    ...     bits = torch.zeros(len(scores))
    ...     bits[slice(*answer)] = 1
    ...     return bits
    >>> intervals = hopfy.structures.Oracle(best_interval)
    >>> scores = torch.tensor([-1.0, 0.6, 0.3, 0.9, -1.0], requires_grad=True)
    >>> weights = F.sparsemap(scores, intervals)
    >>> weights
    tensor([0.0000, 0.5333, 0.3667, 0.8333, 0.0000], grad_fn=...)
    >>> weights[1].backward()
    >>> scores.grad
    tensor([ 0.0000,  0.6667,  0.3333, -0.3333,  0.0000])
    """

    fn: Callable[..., Any]
    factor_scores: Tensor | None = None
    event_dims: int = 1
    batched: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"expected Oracle of a function, got {self.fn!r}.")

    @property
    def has_factors(self) -> bool:
        return self.factor_scores is not None

    def scale_factors(self, scale: float | Tensor) -> Structure:
        if self.factor_scores is None:
            return self
        return replace(self, factor_scores=self.factor_scores * scale)

    @property
    def varies_by_row(self) -> bool:
        return self.factor_scores is not None and self.factor_scores.ndim > 1

    @property
    def margin(self) -> float:
        # Enough for any set of bits; 1 if all structures have as many.
        return 2.0

    @property
    def oracle_key(self) -> Hashable:
        return type(self), self.fn, self.factor_scores is None, self.event_dims, self.batched

    def rows(self, scores: Tensor) -> Rows:
        factor_scores = self.factor_scores
        if factor_scores is None:
            return flat_rows(scores, self.event_dims)
        batch = scores.shape[: scores.ndim - self.event_dims]
        try:
            factor_scores = factor_scores.expand(*batch, factor_scores.shape[-1])
        except (RuntimeError, IndexError):
            raise ValueError(
                f"expected the factor scores of Oracle to have one last dimension and to broadcast "
                f"over the rows {tuple(batch)}, got shape {tuple(factor_scores.shape)}."
            ) from None
        return flat_rows(scores, self.event_dims, factor_scores)

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.batched:
            return self._checked(self._call(rows.scores, rows.factor_scores), rows)
        found = [
            self._call(scores, factors)
            for scores, factors in zip(rows.scores, rows.factor_scores, strict=True)
        ]
        for row, (bits, factors) in enumerate(found):
            self._check_shape("structure", bits, rows.scores[row], rows.name(row))
            self._check_shape("factor bits", factors, rows.factor_scores[row], rows.name(row))
        bits, factors = (torch.stack(parts) for parts in zip(*found, strict=True))
        return self._checked((bits, factors), rows)

    def _call(self, scores: Tensor, factor_scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.factor_scores is None:
            return torch.as_tensor(self.fn(scores), device="cpu"), torch.zeros(
                factor_scores.shape, device="cpu"
            )
        found = self.fn(scores, factor_scores)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"expected the function of Oracle to return (bits, factor bits), got {found!r}."
            )
        return torch.as_tensor(found[0], device="cpu"), torch.as_tensor(found[1], device="cpu")

    @staticmethod
    def _check_shape(what: str, came: Tensor, expected: Tensor, where: str) -> None:
        if came.shape != expected.shape:
            raise ValueError(
                f"expected the function of Oracle to return a {what} of shape "
                f"{tuple(expected.shape)}, got {tuple(came.shape)} in {where}."
            )

    def _checked(self, found: tuple[Tensor, Tensor], rows: Rows) -> tuple[Tensor, Tensor]:
        bits, factors = found
        self._check_shape("structure", bits, rows.scores, "all rows")
        self._check_shape("factor bits", factors, rows.factor_scores, "all rows")
        whole = torch.cat([bits.flatten(1).double(), factors.double()], 1)
        wrong = ((whole != 0) & (whole != 1)).any(1)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(
                "expected the function of Oracle to return zeros and ones, got "
                f"{_first_other(whole[row]):g} in {rows.name(row)}."
            )
        scores = torch.cat([rows.scores.flatten(1), rows.factor_scores], 1)
        wrong = ((whole == 1) & (scores == -torch.inf)).any(1)
        if bool(wrong.any()):
            raise ValueError(
                "expected the function of Oracle to return a feasible structure, got one that selects "
                f"a masked entry (score -inf) in {rows.name(int(wrong.nonzero()[0]))}."
            )
        return bits.to(torch.int8), factors.to(torch.int8)


def _first_other(bits: Tensor) -> float:
    return float(bits[(bits != 0) & (bits != 1)][0])
