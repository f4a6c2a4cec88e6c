"""Recalling many memories one after the other from a single cue, freely or in their order."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import as_positive
from hopfy.omega import Omega

__all__ = ["Fatigue", "Inhibition", "RecallOrder", "UseUp", "free_order", "sequential_order"]

# Strength of fatigue, relative to the largest squared length of a pattern.
_STRENGTH = 1e6
# What neighbors in the order gain together, relative to the strength: more than any scores.
_TRANSITION = 0.1
# The memory that was found last is favored over the one before it.
_FAVOR = 1.1


class Inhibition(ABC):
    """What keeps a memory that was recalled from being recalled again."""

    def fitted(self, beta: float, largest: float) -> Inhibition:  # noqa: ARG002
        """The same for scores at this beta, of patterns whose largest squared length is this."""
        return self

    @abstractmethod
    def begin(self, scores: Tensor) -> Tensor:
        """The first record of what was recalled, for scores (M, N)."""

    @abstractmethod
    def weights(self, omega: Omega, scores: Tensor, record: Tensor) -> Tensor:
        """Weights (M, N) that avoid what the record holds."""

    @abstractmethod
    def after(self, record: Tensor, weights: Tensor) -> Tensor:
        """The record once these weights were recalled."""


@dataclass(frozen=True)
class Fatigue(Inhibition):
    r"""Memories tire: :math:`p = \hat y_\Omega(\beta (X q - \gamma a))`,
    :math:`a \leftarrow l p + (1 - l) a`.

    Args:
        strength: :math:`\gamma`, how much a tired memory loses; None: 1e6 times the largest squared
            length of a pattern, so that it outweighs scores of every size.
        rate: l, how quickly memories tire and recover, at most 1.
    """

    strength: float | None = None
    rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.strength is not None:
            as_positive(self.strength, "strength")
        if as_positive(self.rate, "rate") > 1:
            raise ValueError(f"expected rate to be at most 1, got {self.rate}.")

    def fitted(self, beta: float, largest: float) -> Fatigue:
        strength = _STRENGTH * largest if self.strength is None else self.strength
        scaled = min(beta * strength, sys.float_info.max)
        return replace(self, strength=max(scaled, sys.float_info.min))

    def begin(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores)

    def weights(self, omega: Omega, scores: Tensor, record: Tensor) -> Tensor:
        return omega(self.tired(scores, record))

    def tired(self, scores: Tensor, record: Tensor) -> Tensor:
        """Scores less what the record takes from them."""
        strength = _STRENGTH if self.strength is None else self.strength
        return scores - strength * record

    def after(self, record: Tensor, weights: Tensor) -> Tensor:
        return self.rate * weights + (1 - self.rate) * record


@dataclass(frozen=True)
class UseUp(Inhibition):
    r"""Every memory has a budget of 1 that recalling it uses up: capped sparsemax with
    :math:`u \leftarrow (u - p)_+` (see `hopfy.functional.capped_sparsemax`); omega plays no part.
    """

    def begin(self, scores: Tensor) -> Tensor:
        return torch.ones_like(scores)

    def weights(self, omega: Omega, scores: Tensor, record: Tensor) -> Tensor:  # noqa: ARG002
        left = record.sum(-1, keepdim=True)
        return F.capped_sparsemax(scores, record / left.clamp_max(1))

    def after(self, record: Tensor, weights: Tensor) -> Tensor:
        return (record - weights).clamp_min(0)


@dataclass(frozen=True)
class RecallOrder:
    """Memories in the order in which they came back.

    Attributes:
        ids: (..., steps) int64, the memory with the largest weight after each step.
        share: (..., steps), its weight: 1 where it came back alone.
    """

    ids: Any
    share: Any

    @property
    def distinct(self) -> Any:
        """The share of different memories among all steps, (...)."""
        ids = torch.as_tensor(self.ids)
        ordered = ids.sort(-1).values
        changes = (ordered[..., 1:] != ordered[..., :-1]).sum(-1) + 1
        return changes.double() / ids.shape[-1]

    def agreement(self, order: Any) -> Any:
        """1 - Levenshtein(ids, order) / steps, (...): 1 if they came back exactly in this order."""
        ids = torch.as_tensor(self.ids)
        wanted = torch.as_tensor(order).flatten().tolist()
        rows = ids.reshape(-1, ids.shape[-1]).tolist()
        longest = max(ids.shape[-1], len(wanted))
        found = torch.tensor([1 - _edits(row, wanted) / longest for row in rows])
        return found.double().reshape(ids.shape[:-1])

    def __repr__(self) -> str:
        ids = torch.as_tensor(self.ids)
        mean = float(torch.as_tensor(self.distinct).mean())
        return f"RecallOrder of {ids.shape[-1]} steps, {100 * mean:.0f}% different memories"


def free_order(
    scores_of: Any, omega: Omega, patterns: Tensor, cues: Tensor, steps: int, options: Any
) -> tuple[Tensor, Tensor]:
    """Places (M, steps) of the recalled patterns and their weights; ``options``: see `Plan`."""
    state, plan = cues, options
    record = plan.inhibition.begin(scores_of(state))
    places, shares = [], []
    for _ in range(steps):
        weights = plan.inhibition.weights(omega, scores_of(state), record)
        record = plan.inhibition.after(record, weights)
        state, weights = _settle(scores_of, omega, patterns, weights, plan.settle)
        best = weights.max(-1)
        places.append(best.indices)
        shares.append(best.values)
    return torch.stack(places, -1), torch.stack(shares, -1)


def sequential_order(
    scores_of: Any, omega: Omega, patterns: Tensor, cues: Tensor, steps: int, options: Any
) -> tuple[Tensor, Tensor]:
    r"""The same along the order of storage.

    The first step recalls the cue itself; then
    :math:`y` = sequential 2-subsets picks the state's memory and a neighbor,
    :math:`q \leftarrow X^\top y - q` leaves the neighbor, and the memory that was left tires.
    """
    fatigue, settle = options.inhibition, options.settle
    gain = _TRANSITION * fatigue.strength
    first = omega(scores_of(cues))
    state, weights = _settle(scores_of, omega, patterns, first, settle)
    record = torch.zeros_like(weights)
    places, shares = [weights.argmax(-1)], [weights.amax(-1)]
    for _ in range(steps - 1):
        scores = fatigue.tired(scores_of(state), record)
        pair = F.sequential_ksubsets(scores, min(2, scores.shape[-1]), gain)
        following = omega(scores_of(pair @ patterns - state))
        state, weights = _settle(scores_of, omega, patterns, following, settle)
        record = fatigue.after(record, pair - _FAVOR * weights)
        places.append(weights.argmax(-1))
        shares.append(weights.amax(-1))
    return torch.stack(places, -1), torch.stack(shares, -1)


def _settle(
    scores_of: Any, omega: Omega, patterns: Tensor, weights: Tensor, updates: int
) -> tuple[Tensor, Tensor]:
    """So many plain updates from weights; a fixed point ends them early."""
    state = weights @ patterns
    for _ in range(updates):
        weights = omega(scores_of(state))
        following = weights @ patterns
        if torch.equal(following, state):
            break
        state = following
    return state, weights


@dataclass(frozen=True)
class Plan:
    """How a recall in order proceeds."""

    inhibition: Any
    settle: int

    def __post_init__(self) -> None:
        if isinstance(self.settle, bool) or not isinstance(self.settle, int) or self.settle < 0:
            raise ValueError(f"expected settle to be an integer >= 0, got {self.settle!r}.")

    def fitted(self, beta: float, patterns: Tensor) -> Plan:
        """The same for scores of these patterns (N, D) at this beta."""
        largest = float(patterns.square().sum(-1).max())
        return replace(self, inhibition=self.inhibition.fitted(beta, largest))


def checked_steps(steps: int | None, count: int) -> int:
    """How many memories to recall, by default all."""
    if steps is None:
        return count
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= count:
        raise ValueError(f"expected steps from 1 to the {count} patterns, got {steps!r}.")
    return steps


def _edits(one: list[int], other: list[int]) -> int:
    """The Levenshtein distance."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
