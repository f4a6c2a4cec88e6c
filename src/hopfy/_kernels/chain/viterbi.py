# mypy: ignore-errors
"""The best path through a chain of states, compiled for vector instructions."""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["best_states", "edge_score"]


@part
def edge_score(transition, edge, before, after):
    """The score of a transition; ``transition`` (E, S, S) has one table for each edge, or for all."""
    return transition[edge % transition.shape[0], before, after]


@part
def best_states(scores, transition, first, value, path):
    """Fill ``path`` (L) with the best states for scores (L, S); False if there is none.

    A position whose scores are all -inf is not there (its state is -1), and neither are the edges
    that touch it. ``value`` (L, S) is scratch: the best score of a path that ends in a state.
    Only these are kept; which state came before is found again on the way back.
    """
    length, states = scores.shape
    feasible = True
    joined = False
    for i in range(length):
        here = value[i]
        if joined:
            _advance(value[i - 1], transition[(first + i - 1) % transition.shape[0]], here)
            for b in range(states):
                here[b] += scores[i, b]
        else:
            for b in range(states):
                here[b] = scores[i, b]
        joined = False
        for b in range(states):
            joined = joined or scores[i, b] > -np.inf
        path[i] = 0 if joined else -1
    for i in range(length - 1, -1, -1):
        if path[i] < 0:
            continue
        top, at = -np.inf, -1
        if i + 1 < length and path[i + 1] >= 0:
            table = transition[(first + i) % transition.shape[0]]
            for a in range(states):
                score = value[i, a] + table[a, path[i + 1]]
                if score > top:
                    top, at = score, a
        else:
            for a in range(states):
                if value[i, a] > top:
                    top, at = value[i, a], a
        feasible = feasible and at >= 0
        path[i] = max(at, 0)
    return feasible


@part
def _advance(before, table, ahead):
    """``ahead[b]`` = the best of ``before[a] + table[a, b]``."""
    states = before.shape[0]
    for b in range(states):
        ahead[b] = before[0] + table[0, b]
    for a in range(1, states):
        score, row = before[a], table[a]
        for b in range(states):
            candidate = score + row[b]
            ahead[b] = candidate if candidate > ahead[b] else ahead[b]
