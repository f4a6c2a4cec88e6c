# mypy: ignore-errors
r"""SparseMAP over chains, compiled: from face to face of the local polytope.

A method that mixes whole paths adds one per search, and a long chain needs thousands. Here the point
is kept as marginals of states and transitions, so that one best path improves the chain in all its
places at once:

1. Find the best path for the gradient :math:`\theta - y` (Viterbi). If its lead over the present
   point, the Frank-Wolfe gap, is closed, stop.
2. Go toward the path as far as pays. Its transitions join the support.
3. Where the transitions of an edge form a cycle, the objective is linear along it: go up until one
   of them vanishes. They form a forest again.
4. Solve the problem on the face of the present support, with flows of any sign (`face.py`, O(N)), and
   go there until a flow vanishes; it leaves. Repeat until all of them are positive.

The objective rises with every path and no face comes twice, so the method ends, with the exact
optimum. Its Jacobian is the solution of the same linear system on the last face.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels.chain.face import new_face, new_work, solve_face
from hopfy._kernels.chain.viterbi import best_states
from hopfy._runtime.compilation import jit, part

__all__ = ["product_rows", "solve_rows"]

CONVERGED, OPEN, INFEASIBLE = 0, 1, 2

# Rounds of dropping all negative flows at once.
_JUMPS = 30
# Flows below this are zero.
_ZERO = 1e-14
# Rounding in sums of scores, relative to the sum of their sizes.
_NOISE = 1e-14


@part
def _drop(face, e, p):
    """Remove a pair of an edge; the last one takes its place."""
    last = face.count[e] - 1
    face.first[e, p], face.second[e, p] = face.first[e, last], face.second[e, last]
    face.flow[e, p], face.target[e, p] = face.flow[e, last], face.target[e, last]
    face.count[e] = last
    face.changed[e] = True


@part
def _has(states, count, state):
    found = False
    for p in range(count):
        found |= states[p] == state
    return found


@part
def _prune(face):
    """Drop pairs that lead nowhere: those of a state without pairs on its other side."""
    edges = face.count.shape[0]
    changed = True
    while changed:
        changed = False
        for e in range(edges):
            p = 0
            while p < face.count[e]:
                dead = e > 0 and not _has(face.second[e - 1], face.count[e - 1], face.first[e, p])
                dead = dead or (
                    e + 1 < edges
                    and not _has(face.first[e + 1], face.count[e + 1], face.second[e, p])
                )
                if dead:
                    _drop(face, e, p)
                    changed = True
                else:
                    p += 1


@part
def _drop_zeros(face):
    dropped = 0
    for e in range(face.count.shape[0]):
        p = 0
        while p < face.count[e]:
            if face.flow[e, p] <= _ZERO:
                _drop(face, e, p)
                dropped += 1
            else:
                p += 1
    if dropped > 0:
        _prune(face)
    return dropped


@part
def _walk(face):
    """Go from the flows to their targets until one vanishes; whether all the way was possible."""
    step = 1.0
    for e in range(face.count.shape[0]):
        for p in range(face.count[e]):
            if face.target[e, p] < 0.0:
                have = face.flow[e, p]
                step = min(step, have / (have - face.target[e, p]))
    for e in range(face.count.shape[0]):
        for p in range(face.count[e]):
            flow = face.flow[e, p] + step * (face.target[e, p] - face.flow[e, p])
            if face.target[e, p] < 0.0 and flow <= _ZERO * (1.0 + abs(face.target[e, p])):
                flow = 0.0
            face.flow[e, p] = flow
    return step == 1.0


@part
def _value(face, y, theta, transition, begin):
    """The objective of the flows; ``y`` becomes their marginals."""
    _marginals(face, y)
    total = 0.0
    for i in range(theta.shape[0]):
        for a in range(theta.shape[1]):
            if y[i, a] > 0.0:
                total += y[i, a] * (theta[i, a] - 0.5 * y[i, a])
    for e in range(face.count.shape[0]):
        table = transition[(begin + e) % transition.shape[0]]
        for p in range(face.count[e]):
            total += face.flow[e, p] * table[face.first[e, p], face.second[e, p]]
    return total


@part
def _jump(face, work, theta, transition, begin, y):
    """Drop all pairs with negative targets at once, until there are none.

    That need not lead up; if it does not, the face is as before and the answer is False.
    """
    before = _value(face, y, theta, transition, begin)
    first, second = face.first.copy(), face.second.copy()
    flow, count = face.flow.copy(), face.count.copy()
    for _ in range(_JUMPS):
        solve_face(face, work, theta, transition, begin, 1.0)
        for e in range(face.count.shape[0]):
            for p in range(face.count[e]):
                face.flow[e, p] = face.target[e, p]
        if _drop_zeros(face) == 0:
            after = _value(face, y, theta, transition, begin)
            if after > before - 1e-13 * (1.0 + abs(before)):
                return True
            break
        if np.min(face.count) == 0:
            break
    face.first[:], face.second[:] = first, second
    face.flow[:], face.count[:] = flow, count
    face.changed[:] = True
    return False


@part
def _settle(face, work, theta, transition, begin, limit, y):
    """Go to an optimum over a part of the present support; returns False if that takes too long."""
    if _jump(face, work, theta, transition, begin, y):
        return True
    for _ in range(limit):
        solve_face(face, work, theta, transition, begin, 1.0)
        arrived = _walk(face)
        if _drop_zeros(face) == 0 and arrived:
            return True
    return False


@part
def _cycle(face, e, new, sign, stack):
    """Mark the cycle that the pair ``new`` closes in the forest of the others: +1 and -1 in turn.

    The walk goes from the state after the pair back to the state before it. Returns False if there is
    none.
    """
    count = face.count[e]
    came = np.full(count, -2)  # pair by which a pair was reached; -1 for the first ones
    goal = face.first[e, new]
    depth = 0
    for p in range(count):
        if p != new and face.second[e, p] == face.second[e, new]:
            came[p] = -1
            stack[depth] = p
            depth += 1
    # A pair reached over its second state is left over its first one, and conversely.
    inward = np.ones(count, np.bool_)
    while depth > 0:
        depth -= 1
        p = stack[depth]
        if inward[p] and face.first[e, p] == goal:
            for q in range(count):
                sign[q] = 0
            sign[new] = 1
            turn, q = -1, p
            while q >= 0:
                sign[q] = turn
                turn = -turn
                q = came[q]
            return True
        for q in range(count):
            if q == new or came[q] != -2:
                continue
            if inward[p] and face.first[e, q] == face.first[e, p]:
                came[q], inward[q] = p, False
            elif not inward[p] and face.second[e, q] == face.second[e, p]:
                came[q], inward[q] = p, True
            else:
                continue
            stack[depth] = q
            depth += 1
    return False


@part
def _break_cycle(face, e, new, table):
    """Go along the cycle of the new pair, the way that pays, until a pair vanishes."""
    count = face.count[e]
    sign, stack = np.zeros(count, np.int64), np.empty(count + 1, np.int64)
    if not _cycle(face, e, new, sign, stack):
        return
    slope = 0.0
    for p in range(count):
        if sign[p] != 0:
            slope += sign[p] * table[face.first[e, p], face.second[e, p]]
    way = 1 if slope > 0.0 else -1
    step, out = np.inf, -1
    for p in range(count):
        if way * sign[p] < 0 and face.flow[e, p] < step:
            step, out = face.flow[e, p], p
    for p in range(count):
        face.flow[e, p] += way * sign[p] * step
    _drop(face, e, out)


@part
def _blend(face, path, share, transition, begin):
    """Go a share of the way to a path."""
    for e in range(face.count.shape[0]):
        new = -1
        for p in range(face.count[e]):
            face.flow[e, p] *= 1.0 - share
            if face.first[e, p] == path[e] and face.second[e, p] == path[e + 1]:
                new = p
        if new >= 0:
            face.flow[e, new] += share
            continue
        new = face.count[e]
        face.first[e, new], face.second[e, new] = path[e], path[e + 1]
        face.flow[e, new] = face.target[e, new] = share
        face.count[e] = new + 1
        face.changed[e] = True
        _break_cycle(face, e, new, transition[(begin + e) % transition.shape[0]])


@part
def _lead(face, y, theta, transition, begin, path):
    """How much better than the present point the path is for the gradient, and the rounding in it."""
    lead, noise = 0.0, 0.0
    for i in range(theta.shape[0]):
        for a in range(theta.shape[1]):
            share = (1.0 if a == path[i] else 0.0) - y[i, a]
            if share != 0.0:
                lead += share * (theta[i, a] - y[i, a])
                noise += abs(share) * (abs(theta[i, a]) + 1.0)
    for e in range(face.count.shape[0]):
        table = transition[(begin + e) % transition.shape[0]]
        own = 1.0
        for p in range(face.count[e]):
            a, b = face.first[e, p], face.second[e, p]
            if a == path[e] and b == path[e + 1]:
                own -= face.flow[e, p]
            else:
                lead -= face.flow[e, p] * table[a, b]
                noise += face.flow[e, p] * abs(table[a, b])
        score = table[path[e], path[e + 1]]
        lead += own * score
        noise += own * abs(score)
    return lead, noise


@part
def _marginals(face, y):
    """``y`` (L, S) from the flows."""
    y[:] = 0.0
    edges = face.count.shape[0]
    for e in range(edges):
        for p in range(face.count[e]):
            y[e, face.first[e, p]] += face.flow[e, p]
    for p in range(face.count[edges - 1]):
        y[edges, face.second[edges - 1, p]] += face.flow[edges - 1, p]


@part
def _solve_run(theta, transition, begin, tol, limit, y):
    """Solve positions that are all there: their face, how it ended, the gap and the searches."""
    length, states = theta.shape
    face, work = new_face(length - 1, states), new_work(length - 1, states)
    value, gradient = np.empty((length, states)), np.empty((length, states))
    path = np.empty(length, np.int32)
    if not best_states(theta, transition, begin, value, path):
        return face, INFEASIBLE, np.inf, 1
    _blend(face, path, 1.0, transition, begin)
    _marginals(face, y)
    before = np.inf
    for search in range(limit):
        for i in range(length):
            for a in range(states):
                gradient[i, a] = theta[i, a] - y[i, a]
        best_states(gradient, transition, begin, value, path)
        gap, noise = _lead(face, y, theta, transition, begin, path)
        if gap <= tol + _NOISE * noise or (gap >= before and gap <= 1e2 * (tol + _NOISE * noise)):
            return face, CONVERGED, gap, search + 1
        before = gap
        distance = 0.0
        for i in range(length):
            for a in range(states):
                share = (1.0 if a == path[i] else 0.0) - y[i, a]
                distance += share * share
        _blend(face, path, min(gap / distance, 1.0), transition, begin)
        _drop_zeros(face)
        if not _settle(face, work, theta, transition, begin, 64 * length * states, y):
            return face, OPEN, gap, search + 1
        _marginals(face, y)
    return face, OPEN, before, limit


@part
def _solve_alone(theta, y):
    """A position without neighbors: sparsemax. Drop what is below the threshold until nothing is."""
    states = theta.shape[0]
    top = -np.inf
    for a in range(states):
        top = max(top, theta[a])
    for a in range(states):
        y[a] = 1.0 if theta[a] > -np.inf else 0.0
    while True:
        total, count = -1.0, 0
        for a in range(states):
            if y[a] > 0.0:
                total += theta[a] - top
                count += 1
        threshold, changed = total / count, False
        for a in range(states):
            if y[a] > 0.0 and theta[a] - top <= threshold:
                y[a], changed = 0.0, True
        if not changed:
            break
    for a in range(states):
        if y[a] > 0.0:
            y[a] = theta[a] - top - threshold


@part
def _next_run(scores, begin):
    """The next run of positions that have a state: [begin, end); empty behind the last."""
    length, states = scores.shape
    end = begin
    while end < length:
        there = False
        for a in range(states):
            there = there or scores[end, a] > -np.inf
        if there:
            end += 1
        elif end == begin:
            begin += 1
            end += 1
        else:
            break
    return begin, end


@part
def _room(buffer, needed):
    if needed <= buffer.shape[0]:
        return buffer
    larger = np.empty(2 * needed, buffer.dtype)
    larger[: buffer.shape[0]] = buffer
    return larger


@jit
def solve_rows(start, stop, scores, transition, tol, limit, y, ended, gap, calls, counts):
    """Solve rows of scores (R, N, S) with transitions (R or 1, N - 1 or 1, S, S).

    Fills the marginals (R, N, S), how each row ended, its gap, its searches and the number (R, N - 1)
    of transitions in use at each edge. Returns these, as a * S + b, and their marginals, for all edges
    one after the other.
    """
    states = scores.shape[2]
    pairs, flows, used = np.empty(256, np.int32), np.empty(256), 0
    for r in range(start, stop):
        y[r] = 0.0
        counts[r] = 0
        ended[r], gap[r], calls[r] = CONVERGED, 0.0, 0
        tables = transition[r % transition.shape[0]]
        begin, end = _next_run(scores[r], 0)
        while begin < end:
            if end - begin == 1:
                _solve_alone(scores[r, begin], y[r, begin])
            else:
                face, how, more, searches = _solve_run(
                    scores[r, begin:end], tables, begin, tol, limit, y[r, begin:end]
                )
                ended[r] = max(ended[r], how)
                gap[r] += more
                calls[r] += searches
                for e in range(end - begin - 1):
                    counts[r, begin + e] = face.count[e]
                    pairs = _room(pairs, used + face.count[e])
                    flows = _room(flows, used + face.count[e])
                    for p in range(face.count[e]):
                        pairs[used] = face.first[e, p] * states + face.second[e, p]
                        flows[used] = face.flow[e, p]
                        used += 1
            begin, end = _next_run(scores[r], end)
    return pairs[:used], flows[:used]


@part
def _center_alone(y, cotangent, out):
    """The Jacobian of sparsemax: the cotangent on the support less its mean."""
    total, count = 0.0, 0
    for a in range(y.shape[0]):
        if y[a] > 0.0:
            total += cotangent[a]
            count += 1
    for a in range(y.shape[0]):
        out[a] = cotangent[a] - total / count if y[a] > 0.0 else 0.0


@jit
def product_rows(start, stop, y, counts, begins, pairs, cotangent, in_pairs, out, out_pairs):
    """The Jacobian, which is symmetric, times cotangents of marginals and of transitions.

    ``begins`` (R) tells where the pairs of a row begin. Cotangents of transitions come as (R or 1, E,
    S, S) and leave as (R, E, S, S), with one table for all edges or one for each; 0 for none.
    """
    length, states = y.shape[1], y.shape[2]
    for r in range(start, stop):
        out[r] = 0.0
        out_pairs[r] = 0.0
        at = begins[r]
        tables = in_pairs[r % in_pairs.shape[0]]
        begin = 0
        while begin < length:
            end = begin + 1
            while end < length and counts[r, end - 1] > 0:
                end += 1
            if end - begin == 1:
                if np.max(y[r, begin]) > 0.0:
                    _center_alone(y[r, begin], cotangent[r, begin], out[r, begin])
                begin = end
                continue
            face, work = new_face(end - begin - 1, states), new_work(end - begin - 1, states)
            for e in range(end - begin - 1):
                face.count[e] = counts[r, begin + e]
                for p in range(face.count[e]):
                    face.first[e, p], face.second[e, p] = pairs[at] // states, pairs[at] % states
                    at += 1
            solve_face(face, work, cotangent[r, begin:end], tables, begin, 0.0)
            for i in range(begin, end):
                for s in range(work.many[i - begin]):
                    a = work.there[i - begin, s]
                    out[r, i, a] = work.y[i - begin, a]
            if out_pairs.shape[1] > 0:
                for e in range(end - begin - 1):
                    table = out_pairs[r, (begin + e) % out_pairs.shape[1]]
                    for p in range(face.count[e]):
                        table[face.first[e, p], face.second[e, p]] += face.target[e, p]
            begin = end
