# mypy: ignore-errors
"""Best dependency trees, compiled: Chu-Liu-Edmonds (any tree) and Eisner (no crossing arcs).

Scores (R, n, n): row = dependent, column = head, diagonal = arc from the root. A word whose row is
all -inf is not there. ``bits`` (R, n, n) gets the arcs of the tree, -1 everywhere if there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopfy._kernels.oracles.present import present_rows
from hopfy._runtime.compilation import jit, part

__all__ = ["best_arborescence", "best_projective"]


@part
def _gather(scores, words, arcs):
    """Scores of the present words as ``arcs[dependent, head]``, words from 1, the root at 0."""
    count = present_rows(scores, words)
    for a in range(count + 1):
        for b in range(count + 1):
            arcs[a, b] = -np.inf
    for a in range(count):
        for b in range(count):
            arcs[a + 1, 0 if a == b else b + 1] = scores[words[a], words[b]]
    return count


class _Graph(NamedTuple):
    """Nodes 0 (the root) to n, of which contracted ones are dead, and the contractions so far."""

    arcs: np.ndarray  # (n + 1, n + 1) scores, [dependent, head]
    levels: np.ndarray  # (n + 1, n + 1) int64: a higher level counts before a higher score
    origin: np.ndarray  # (n + 1, n + 1) int64: the arc of the row, as dependent * (n + 1) + head
    alive: np.ndarray  # (n + 1) bool
    inside: np.ndarray  # (n + 1) bool: on the cycle that is contracted
    best: np.ndarray  # (n + 1) int64: the chosen head
    seen: np.ndarray  # (n + 1) int64
    ring: np.ndarray  # (n + 1) int64: the nodes of the cycle that is contracted
    member: np.ndarray  # (n + 1) int64: the living node that a node is part of
    merged: np.ndarray  # (n + 1) int64: the node of each contraction
    members: np.ndarray  # (n + 1, n + 1) int64: `member` before each contraction
    kept: np.ndarray  # (n + 1, n + 1) int64: the arcs of each cycle, by dependent; -1: not on it
    chosen: np.ndarray  # (n + 1) int64: the final arcs, by dependent


@part
def _new_graph(size):
    square = (size, size)
    return _Graph(
        np.empty(square),
        np.empty(square, np.int64),
        np.empty(square, np.int64),
        np.empty(size, np.bool_),
        np.empty(size, np.bool_),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(square, np.int64),
        np.empty(square, np.int64),
        np.empty(size, np.int64),
    )


@part
def _reset(graph, size, single):
    """Every node alive and on its own; for a single root, its arcs are a level below all others."""
    for v in range(size):
        graph.alive[v], graph.inside[v], graph.member[v] = True, False, v
        for u in range(size):
            graph.levels[v, u] = -1 if single and u == 0 else 0
            graph.origin[v, u] = v * size + u


@part
def _wins(level, score, top_level, top):
    """Whether (level, score) comes before (top_level, top): the level counts first."""
    return score > -np.inf and (
        top == -np.inf or level > top_level or (level == top_level and score > top)
    )


@part
def _best_head(graph, size, v):
    """The best head of a node; -1 if it has none."""
    level, top, head = 0, -np.inf, -1
    for u in range(size):
        score = graph.arcs[v, u]
        if graph.alive[u] and u != v and _wins(graph.levels[v, u], score, level, top):
            level, top, head = graph.levels[v, u], score, u
    return head


@part
def _cycle(graph, size):
    """A node on a cycle of the chosen heads, or -1."""
    best, seen = graph.best, graph.seen
    for v in range(size):
        seen[v] = 0
    seen[0] = -1
    for v in range(1, size):
        if not graph.alive[v]:
            continue
        u = v
        while seen[u] == 0:
            seen[u] = v
            u = best[u]
        if u > 0 and seen[u] == v:
            return u
    return -1


@part
def _enter_cycle(graph, count, node, u):
    """The arc from u into the cycle: it replaces the one that the cycle holds for its dependent."""
    arcs, levels, best = graph.arcs, graph.levels, graph.best
    level, top, origin = 0, -np.inf, -1
    for s in range(count):
        v = graph.ring[s]
        if arcs[v, u] > -np.inf:
            gain = arcs[v, u] - arcs[v, best[v]]
            step = levels[v, u] - levels[v, best[v]]
            if _wins(step, gain, level, top):
                level, top, origin = step, gain, graph.origin[v, u]
    return level, top, origin


@part
def _contract(graph, size, node, depth):
    """Merge the cycle through ``node`` into it, and choose its head anew; False if there is none."""
    arcs, levels, inside = graph.arcs, graph.levels, graph.inside
    for v in range(size):
        inside[v] = False
        graph.members[depth, v], graph.kept[depth, v] = graph.member[v], -1
    count, v = 0, node
    while not inside[v]:
        inside[v] = True
        graph.kept[depth, v] = graph.origin[v, graph.best[v]]
        graph.ring[count] = v
        count += 1
        v = graph.best[v]
    for u in range(size):
        if not graph.alive[u] or inside[u]:
            continue
        level, top, origin = _enter_cycle(graph, count, node, u)
        if u > 0:
            into, out, leave = 0, -np.inf, node
            for s in range(count):
                v = graph.ring[s]
                if _wins(levels[u, v], arcs[u, v], into, out):
                    into, out, leave = levels[u, v], arcs[u, v], v
            arcs[u, node], levels[u, node] = out, into
            graph.origin[u, node] = graph.origin[u, leave]
            if inside[graph.best[u]]:
                graph.best[u] = node
        arcs[node, u], levels[node, u], graph.origin[node, u] = top, level, origin
    for v in range(size):
        graph.alive[v] &= not inside[v] or v == node
        if inside[graph.member[v]]:
            graph.member[v] = node
    graph.merged[depth] = node
    graph.best[node] = _best_head(graph, size, node)
    return graph.best[node] >= 0


@part
def _arborescence(graph, size, single, heads):
    """Heads (1..n, the root is 0) of the best arborescence; False if there is none."""
    _reset(graph, size, single)
    for v in range(1, size):
        graph.best[v] = _best_head(graph, size, v)
        if graph.best[v] < 0:
            return False
    depth, node = 0, _cycle(graph, size)
    while node >= 0:
        if not _contract(graph, size, node, depth):
            return False
        depth += 1
        node = _cycle(graph, size)
    chosen = graph.chosen
    for v in range(1, size):
        if graph.alive[v]:
            chosen[v] = graph.origin[v, graph.best[v]]
    for level in range(depth - 1, -1, -1):
        arc = chosen[graph.merged[level]]
        for v in range(1, size):
            if graph.kept[level, v] >= 0:
                chosen[v] = graph.kept[level, v]
        chosen[graph.members[level, arc // size]] = arc
    for v in range(1, size):
        heads[chosen[v] // size] = chosen[v] % size
    return True


@part
def _write(heads, words, count, single, bits):
    """Arcs in the numbering of the row; False if a single root was asked for and missed."""
    _fill(bits, 0)
    roots = 0
    for a in range(count):
        head = heads[a + 1]
        bits[words[a], words[a] if head == 0 else words[head - 1]] = 1
        roots += head == 0
    return not single or roots <= 1


@part
def _fill(bits, value):
    for i in range(bits.shape[0]):
        for j in range(bits.shape[1]):
            bits[i, j] = value


@jit
def best_arborescence(begin, stop, scores, single, bits):
    """Chu-Liu-Edmonds by repeated contraction of the dense matrix, O(n^2)."""
    n = scores.shape[1]
    words, found = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    graph = _new_graph(n + 1)
    for r in range(begin, stop):
        count = _gather(scores[r], words, graph.arcs)
        feasible = _arborescence(graph, count + 1, single, found)
        if not (feasible and _write(found, words, count, single, bits[r])):
            _fill(bits[r], -1)


@part
def _eisner(arcs, whole, part, cut, cut_part):
    """Fill the spans of Eisner's algorithm over nodes 0..n; direction 0 = head on the right."""
    size = arcs.shape[0]
    for i in range(size):
        whole[i, i, 0] = whole[i, i, 1] = 0.0
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            top, at = -np.inf, i
            for m in range(i, j):
                score = whole[i, m, 1] + whole[m + 1, j, 0]
                if score > top:
                    top, at = score, m
            cut_part[i, j] = at
            part[i, j, 0] = top + arcs[i, j]
            part[i, j, 1] = top + arcs[j, i]
            top, at = -np.inf, i
            for m in range(i, j):
                score = whole[i, m, 0] + part[m, j, 0]
                if score > top:
                    top, at = score, m
            whole[i, j, 0], cut[i, j, 0] = top, at
            top, at = -np.inf, j
            for m in range(i + 1, j + 1):
                score = part[i, m, 1] + whole[m, j, 1]
                if score > top:
                    top, at = score, m
            whole[i, j, 1], cut[i, j, 1] = top, at


@part
def _read_spans(cut, cut_part, heads, stack, depth):
    """Follow the cuts of the spans on the stack: (left, right, direction, is complete)."""
    while depth > 0:
        depth -= 1
        i, j, direction, complete = stack[depth]
        if i == j:
            continue
        if complete == 1:
            m = cut[i, j, direction]
            if direction == 0:
                stack[depth] = (i, m, 0, 1)
                stack[depth + 1] = (m, j, 0, 0)
            else:
                stack[depth] = (i, m, 1, 0)
                stack[depth + 1] = (m, j, 1, 1)
        else:
            m = cut_part[i, j]
            if direction == 0:
                heads[i] = j
            else:
                heads[j] = i
            stack[depth] = (i, m, 1, 1)
            stack[depth + 1] = (m + 1, j, 0, 1)
        depth += 2


@jit
def best_projective(begin, stop, scores, single, bits):
    """Eisner's dynamic program, O(n^3); with a single root it is placed last."""
    n = scores.shape[1]
    words, found = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    arcs = np.empty((n + 1, n + 1))
    whole, part = np.empty((n + 1, n + 1, 2)), np.empty((n + 1, n + 1, 2))
    cut, cut_part = np.empty((n + 1, n + 1, 2), np.int64), np.empty((n + 1, n + 1), np.int64)
    stack = [(0, 0, 0, 0)] * (4 * n + 8)
    for r in range(begin, stop):
        count = _gather(scores[r], words, arcs)
        _eisner(arcs[: count + 1, : count + 1], whole, part, cut, cut_part)
        total = whole[0, count, 1]
        stack[0] = (0, count, 1, 1)
        depth = 1
        if single and count > 0:
            total, root = -np.inf, 1
            for w in range(1, count + 1):
                score = whole[1, w, 0] + whole[w, count, 1] + arcs[w, 0]
                if score > total:
                    total, root = score, w
            found[root] = 0
            stack[0] = (1, root, 0, 1)
            stack[1] = (root, count, 1, 1)
            depth = 2
        if total == -np.inf:
            _fill(bits[r], -1)
            continue
        _read_spans(cut, cut_part, found, stack, depth)
        _write(found, words, count, single, bits[r])
