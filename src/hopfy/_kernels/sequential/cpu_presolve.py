# mypy: ignore-errors
r"""Sequential k-subsets, compiled: what large scores decide is decided before the solvers see it.

Scores such as -1e30 stand for "never" in many programs. They must not cost the other scores their
digits, so rows with large numbers are reduced first. A position is settled if no subset that could
have weight disagrees about it; then it leaves the row, and one that is selected passes its pair
scores on to its neighbors. Two tests settle positions:

- Exchange: swapping position i for j changes the gradient's score of a subset by at least
  :math:`l_j - u_i`, with :math:`u_i = \theta_i + [t_i]_+ + [t_{i+1}]_+` and
  :math:`l_j = \theta_j - [-t_j]_+ - [-t_{j+1}]_+ - 2`. If k positions have :math:`l_j > u_i`, one
  of them is free to replace i in any subset: i is never selected. O(N).
- Best subsets: at the optimum every active subset scores at most
  :math:`2 \min(k, N - k)` below the best of all. If the best subset with i (or without it, by a
  dynamic program in both directions) is worse than that, i is settled. O(Nk).

A penalty that no active subset pays is raised to one that is just large enough.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels.rows.quickselect import kth_smallest
from hopfy._runtime.compilation import jit, part

__all__ = ["ROUGH", "reduce_rows"]

# Numbers up to this size leave the solvers enough digits.
ROUGH = 1e3

# Rounding errors of sums of scores, relative to what was added.
_NOISE = 1e-14

# Above this size sums might overflow; the tests then compare scores scaled down.
_OVERFLOW, _SCALE = 1e290, 2.0**-60
_MOST = 1e300


@jit
def reduce_rows(start, stop, which, scores, edges, k, verdicts):
    """Settle positions of rows ``which[start:stop]`` and take them out, all in place.

    ``verdicts`` (len(which), N) gets 0 or 1 for the positions that are settled, and -1 for all
    others. What is left is a row of its own: scores (-inf where settled or masked), pair scores and
    budget.
    """
    size = scores.shape[1]
    where, theta, edge = np.empty(size, np.int64), np.empty(size), np.empty(size)
    for index in range(start, stop):
        r = which[index]
        n = 0
        for i in range(size):
            verdicts[index, i] = -1
            if scores[r, i] > -np.inf:
                joined = n > 0 and where[n - 1] == i - 1
                where[n], theta[n] = i, scores[r, i]
                edge[n] = edges[r, i - 1] if joined else 0.0
                n += 1
        n, k[r] = _reduce(where, theta, edge, n, min(k[r], n), verdicts[index])
        for i in range(size):
            scores[r, i] = -np.inf
        for s in range(n):
            scores[r, where[s]] = theta[s]
            if s > 0 and where[s - 1] == where[s] - 1:
                edges[r, where[s - 1]] = edge[s]


@part
def _reduce(where, theta, edge, n, k, verdicts):
    """Settle what can be settled of n positions (``edge[i]`` rewards the pair i - 1, i).

    Returns the number of positions left, at the front of the arrays, and their budget.
    """
    verdict = np.empty(n, np.int8)
    raised = False
    while n > 0 and _largest(theta, edge, n) > ROUGH:
        _shift(theta, n)
        if k == 0 or k == n:
            settled = n
            for i in range(n):
                verdict[i] = 1 if k == n else 0
        else:
            settled = _by_exchange(theta, edge, n, k, verdict)
            if settled == 0:
                settled, forbidden = _by_best_subsets(theta, edge, n, k, verdict, raised)
                if settled == 0 and (raised or not forbidden):
                    break
                raised = settled == 0
        if settled > 0:
            n, k = _take_out(where, theta, edge, n, k, verdict, verdicts)
    return n, k


@part
def _largest(theta, edge, n):
    """The largest size of a score."""
    most = 0.0
    for i in range(n):
        most = max(most, max(abs(theta[i]), abs(edge[i])))
    return most


@part
def _shift(theta, n):
    """Subtract the smallest score in size: every subset has size k, so nothing changes."""
    least = theta[0]
    for i in range(n):
        if abs(theta[i]) < abs(least):
            least = theta[i]
    for i in range(n):
        theta[i] = min(max(theta[i] - least, -_MOST), _MOST)


@part
def _take_out(where, theta, edge, n, k, verdict, verdicts):
    """Remove what has a verdict; neighbors of selected positions get the pair's score."""
    for i in range(n):
        if verdict[i] < 0:
            continue
        if verdict[i] == 1:
            if i > 0:
                theta[i - 1] += edge[i]
            if i + 1 < n:
                theta[i + 1] += edge[i + 1]
        edge[i] = 0.0
        if i + 1 < n:
            edge[i + 1] = 0.0
    left = 0
    for i in range(n):
        if verdict[i] >= 0:
            verdicts[where[i]] = verdict[i]
            k -= verdict[i]
        else:
            where[left], theta[left], edge[left] = where[i], theta[i], edge[i]
            left += 1
    return left, k


@part
def _by_exchange(theta, edge, n, k, verdict):
    """Set ``verdict`` to 0 or 1 where the exchange test settles it, else -1; return how often."""
    upper, lower = np.empty(n), np.empty(n)
    for i in range(n):
        before, after = edge[i], edge[i + 1] if i + 1 < n else 0.0
        upper[i] = theta[i] + max(before, 0.0) + max(after, 0.0)
        lower[i] = theta[i] + min(before, 0.0) + min(after, 0.0)
        room = 2.0 + _NOISE * (abs(theta[i]) + abs(before) + abs(after))
        lower[i] -= room
    ordered = np.empty(n)
    high = kth_smallest(lower, n, n - k + 1, ordered)  # k positions have this or more
    low = kth_smallest(upper, n, n - k, ordered)  # n - k positions have this or less
    settled = 0
    for i in range(n):
        verdict[i] = -1
        if upper[i] < high:
            verdict[i] = 0
        elif lower[i] > low:
            verdict[i] = 1
        settled += verdict[i] >= 0
    return settled


@part
def _by_best_subsets(theta, edge, n, k, verdict, raised):
    """The same by the best subsets; also whether a penalty that does not apply could be raised.

    If nothing is settled and such penalties were not ``raised`` before, they are.
    """
    scale = _SCALE if _largest(theta, edge, n) > _OVERFLOW else 1.0
    scores, pairs = np.empty(n), np.empty(n)
    backward, turned = np.empty(n), np.empty(n)
    for i in range(n):
        scores[i], pairs[i] = scale * theta[i], scale * edge[i]
    for i in range(n):
        backward[i] = scores[n - 1 - i]
        turned[i] = pairs[n - i] if i > 0 else 0.0
    ahead, behind = _tables(scores, pairs, n, k), _tables(backward, turned, n, k)
    best = max(ahead[0, n, k], ahead[1, n, k])
    margin = scale * 2.0 * min(k, n - k)
    positive = 0.0
    for i in range(n):
        positive = max(positive, max(scores[i], pairs[i]))
    margin += _NOISE * (abs(best) + positive)
    settled, forbidden = 0, False
    unpaid = np.zeros(n, np.bool_)
    for i in range(n):
        rest, without, pair = _through(ahead, behind, scores, pairs, i, k)
        verdict[i] = -1
        if _trails(scores[i] + rest, best, margin):
            verdict[i] = 0
        elif _trails(without, best, margin):
            verdict[i] = 1
        settled += verdict[i] >= 0
        unpaid[i] = edge[i] < -ROUGH and _trails(pairs[i] + pair, best, margin)
        forbidden |= unpaid[i]
    if settled == 0 and forbidden and not raised:
        _raise(theta, edge, n, k, unpaid, best / scale, margin / scale)
    return settled, forbidden


@part
def _trails(score, best, margin):
    return score < best - margin - _NOISE * abs(score)


@part
def _raise(theta, edge, n, k, unpaid, best, margin):
    """Penalties that are just large enough: with one of them no subset comes near the best."""
    for i in range(n):
        if unpaid[i]:
            edge[i] = 0.0
    table = _tables(theta, edge, n, k)
    penalty = best - margin - 1.0 - max(table[0, n, k], table[1, n, k])
    for i in range(n):
        if unpaid[i]:
            edge[i] = min(penalty, -ROUGH)


@part
def _tables(theta, edge, n, k):
    """``[s, i, j]``: the best score of i positions with j selected, the last of them in state s."""
    table = np.empty((2, n + 1, k + 1))
    for state in range(2):
        for i in range(n + 1):
            for j in range(k + 1):
                table[state, i, j] = -np.inf
    table[0, 0, 0] = 0.0
    for i in range(n):
        for j in range(min(i + 1, k) + 1):
            table[0, i + 1, j] = max(table[0, i, j], table[1, i, j])
            if j > 0:
                table[1, i + 1, j] = theta[i] + max(
                    table[0, i, j - 1], table[1, i, j - 1] + edge[i]
                )
    return table


@part
def _through(ahead, behind, theta, edge, i, k):
    """The best subset with position i (less its score), without it, and with i - 1 and i."""
    n = theta.shape[0]
    after = n - 1 - i
    follow = edge[i + 1] if i + 1 < n else 0.0
    rest, without, pair = -np.inf, -np.inf, -np.inf
    for j in range(k + 1):
        if j < k:
            suffix = k - 1 - j
            right = max(behind[0, after, suffix], behind[1, after, suffix] + follow)
            rest = max(rest, max(ahead[0, i, j], ahead[1, i, j] + edge[i]) + right)
            if j > 0:
                pair = max(pair, ahead[1, i, j] + theta[i] + right)
        suffix = k - j
        left = max(ahead[0, i, j], ahead[1, i, j])
        without = max(without, left + max(behind[0, after, suffix], behind[1, after, suffix]))
    return rest, without, pair
