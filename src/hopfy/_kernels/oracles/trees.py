# mypy: ignore-errors
"""Best dependency trees, compiled: Chu-Liu-Edmonds (any tree) and Eisner (no crossing arcs).

Scores (R, n, n): row = dependent, column = head, diagonal = arc from the root. A word whose row is
all -inf is not there. ``heads`` (R, n) gets the head of each word, itself for the root, -1 for an
absent word; -2 in the first place marks a row for which there is no tree.
"""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import jit, part

__all__ = ["best_arborescence", "best_projective"]


@part
def _gather(scores, words, arcs):
    """Scores of the present words as ``arcs[dependent, head]``, words from 1, the root at 0."""
    n = scores.shape[0]
    count = 0
    for i in range(n):
        for j in range(n):
            if scores[i, j] > -np.inf:
                words[count] = i
                count += 1
                break
    arcs[:] = -np.inf
    for a in range(count):
        for b in range(count):
            arcs[a + 1, 0 if a == b else b + 1] = scores[words[a], words[b]]
    return count


@part
def _wins(level, score, top_level, top):
    """Whether (level, score) comes before (top_level, top): the level counts first."""
    return score > -np.inf and (
        top == -np.inf or level > top_level or (level == top_level and score > top)
    )


@part
def _choose(arcs, levels, alive, best):
    """The best head of every living node but the root; False if one has none."""
    size = arcs.shape[0]
    for v in range(1, size):
        if not alive[v]:
            continue
        best[v] = -1
        level, top = 0, -np.inf
        for u in range(size):
            if alive[u] and u != v and _wins(levels[v, u], arcs[v, u], level, top):
                level, top, best[v] = levels[v, u], arcs[v, u], u
        if best[v] < 0:
            return False
    return True


@part
def _cycle(best, alive, seen):
    """A node on a cycle of the chosen heads, or -1."""
    size = best.shape[0]
    seen[:] = 0
    seen[0] = -1
    for v in range(1, size):
        if not alive[v]:
            continue
        u = v
        while seen[u] == 0:
            seen[u] = v
            u = best[u]
        if u > 0 and seen[u] == v:
            return u
    return -1


@part
def _contract(arcs, levels, alive, best, node, source, target, member, inside):
    """Merge the cycle through ``node`` into it; ``source`` and ``target`` name original arcs."""
    size = arcs.shape[0]
    inside[:] = False
    u = node
    while not inside[u]:
        inside[u] = True
        u = best[u]
    for u in range(size):
        if not alive[u] or inside[u]:
            continue
        # Into the cycle: an arc replaces the one that the cycle holds for its target.
        level, top, at = 0, -np.inf, -1
        for v in range(1, size):
            if inside[v] and arcs[v, u] > -np.inf:
                gain = arcs[v, u] - arcs[v, best[v]]
                step = levels[v, u] - levels[v, best[v]]
                if _wins(step, gain, level, top):
                    level, top, at = step, gain, v
        into_source = source[at, u] if at >= 0 else -1
        into_target = target[at, u] if at >= 0 else -1
        # Out of the cycle.
        if u > 0:
            into, out, leave = 0, -np.inf, node
            for v in range(1, size):
                if inside[v] and _wins(levels[u, v], arcs[u, v], into, out):
                    into, out, leave = levels[u, v], arcs[u, v], v
            arcs[u, node], levels[u, node] = out, into
            source[u, node], target[u, node] = source[u, leave], target[u, leave]
        arcs[node, u], levels[node, u] = top, level
        source[node, u], target[node, u] = into_source, into_target
    for v in range(1, size):
        if inside[v] and v != node:
            alive[v] = False
    for word in range(1, size):
        if inside[member[word]]:
            member[word] = node


@part
def _arborescence(arcs, single, heads):
    """Heads (1..n, the root is 0) of the best arborescence; False if there is none.

    For a single root, few arcs from the root come before a high score: they are a level below.
    """
    size = arcs.shape[0]
    levels = np.zeros((size, size), np.int64)
    if single:
        levels[:, 0] = -1
    alive = np.ones(size, np.bool_)
    inside = np.zeros(size, np.bool_)
    best, seen = np.zeros(size, np.int64), np.zeros(size, np.int64)
    source, target = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    for v in range(size):
        for u in range(size):
            source[v, u], target[v, u] = u, v
    member = np.arange(size)
    # What is needed to open each contraction again.
    members = np.empty((size, size), np.int64)
    cycles = np.zeros((size, size), np.bool_)
    node_of = np.empty(size, np.int64)
    cycle_source, cycle_target = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    depth = 0
    while True:
        if not _choose(arcs, levels, alive, best):
            return False
        node = _cycle(best, alive, seen)
        if node < 0:
            break
        members[depth] = member
        for v in range(1, size):
            if alive[v]:
                cycle_source[depth, v] = source[v, best[v]]
                cycle_target[depth, v] = target[v, best[v]]
        _contract(arcs, levels, alive, best, node, source, target, member, inside)
        cycles[depth] = inside
        node_of[depth] = node
        depth += 1
    arc_source, arc_target = np.empty(size, np.int64), np.empty(size, np.int64)
    for v in range(1, size):
        if alive[v]:
            arc_source[v], arc_target[v] = source[v, best[v]], target[v, best[v]]
    for level in range(depth - 1, -1, -1):
        node = node_of[level]
        entered = members[level, arc_target[node]]
        into_source, into_target = arc_source[node], arc_target[node]
        for v in range(1, size):
            if cycles[level, v]:
                arc_source[v], arc_target[v] = cycle_source[level, v], cycle_target[level, v]
        arc_source[entered], arc_target[entered] = into_source, into_target
    for v in range(1, size):
        heads[arc_target[v]] = arc_source[v]
    return True


@part
def _write(heads, words, count, single, out):
    """Heads back in the numbering of the row; False if a single root was asked for and missed."""
    out[:] = -1
    roots = 0
    for a in range(count):
        head = heads[a + 1]
        out[words[a]] = words[a] if head == 0 else words[head - 1]
        roots += head == 0
    return not single or roots <= 1


@jit
def best_arborescence(begin, stop, scores, single, heads):
    """Chu-Liu-Edmonds by repeated contraction of the dense matrix, O(n^3) at worst."""
    n = scores.shape[1]
    words, found = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    arcs = np.empty((n + 1, n + 1))
    for r in range(begin, stop):
        count = _gather(scores[r], words, arcs)
        feasible = _arborescence(arcs[: count + 1, : count + 1].copy(), single, found)
        if not (feasible and _write(found, words, count, single, heads[r])):
            heads[r, 0] = -2


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
def best_projective(begin, stop, scores, single, heads):
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
            heads[r, 0] = -2
            continue
        _read_spans(cut, cut_part, found, stack, depth)
        _write(found, words, count, single, heads[r])
