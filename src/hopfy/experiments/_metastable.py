r"""Sizes of metastable states: how many patterns take part after a few updates.

Many maps are asked about the same queries, so what they have in common is computed once: the
scores :math:`X q` do not depend on the map nor on beta, and from the second update on most states
are stored patterns that several maps share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.search import SparseWeights

__all__ = ["Setting", "metastable_sizes"]

_COUNTED = 0.01
"""Weights of softmax that count; every one of them is positive."""
_SCORES = 1 << 24
"""Scores held at once."""


class Setting(NamedTuple):
    """One network: the map and its inverse temperature."""

    omega: Omega
    beta: float


@dataclass
class _Run:
    """The queries of one setting on their way."""

    setting: Setting
    states: Tensor
    sizes: Tensor
    active: Tensor


@torch.no_grad()
def metastable_sizes(
    memories: Tensor, queries: Tensor, settings: Sequence[Setting], updates: int = 5
) -> list[Tensor]:
    r"""For each setting (Q,) int64: the non-zero weights :math:`\hat y(\beta X q)` of the last update.

    Scores and states have the memories' dtype, as in the paper (float32). Sparse maps count
    weights > 0, softmax those > 0.01, of which there may be none. A query whose state no longer
    changes, bit for bit, is done: its weights stay what they are.
    """
    everyone = torch.arange(queries.shape[0])
    runs = [
        _Run(setting, queries.clone(), torch.zeros_like(everyone), everyone) for setting in settings
    ]
    for number in range(1, updates + 1):
        moved = [torch.zeros(queries.shape[0], dtype=torch.bool) for _ in runs]
        for scores, asked in _shared_scores(memories, runs):
            for run, rows, places, changed in zip(runs, *zip(*asked, strict=True), moved, strict=True):
                if rows.numel() == 0:
                    continue
                states = _update(run, memories, scores[places], rows, last=number == updates)
                if states is not None:
                    changed[rows] = (states != run.states[rows]).any(1)
                    run.states[rows] = states
        for run, changed in zip(runs, moved, strict=True):
            run.active = changed.nonzero().flatten()
    return [run.sizes for run in runs]


def _update(
    run: _Run, memories: Tensor, scores: Tensor, rows: Tensor, *, last: bool
) -> Tensor | None:
    """Note the sizes of ``rows``; return their next states unless this update is the last one."""
    weights = run.setting.omega(scores.mul_(run.setting.beta))
    if run.setting.omega.margin == torch.inf:
        run.sizes[rows] = (weights > _COUNTED).sum(1)
        return None if last else weights @ memories
    support = SparseWeights.from_dense(weights)
    run.sizes[rows] = support.counts
    return None if last else support.mix(memories)


def _shared_scores(
    memories: Tensor, runs: Sequence[_Run]
) -> Iterator[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
    """Scores of the different states of all runs, some at a time.

    With the scores come, for each run, the rows whose states are among them, and their places.
    """
    different: dict[bytes, int] = {}
    owner: list[tuple[int, int]] = []
    where = []
    for number, run in enumerate(runs):
        own = []
        for row in run.active.tolist():
            place = different.setdefault(run.states[row].numpy().tobytes(), len(different))
            if place == len(owner):
                owner.append((number, row))
            own.append(place)
        where.append(torch.tensor(own, dtype=torch.int64))
    # Places follow each other within a run, so a run meets its states in few pieces.
    states = memories.new_empty(len(owner), memories.shape[1])
    for place, (number, row) in enumerate(owner):
        states[place] = runs[number].states[row]
    size = max(1, _SCORES // memories.shape[0])
    for start in range(0, len(owner), size):
        scores = states[start : start + size] @ memories.mT
        asked = []
        for run, places in zip(runs, where, strict=True):
            here = ((places >= start) & (places < start + size)).nonzero().flatten()
            asked.append((run.active[here], places[here] - start))
        yield scores, asked
