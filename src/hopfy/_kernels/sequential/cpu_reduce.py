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

from hopfy._runtime.compilation import part

__all__ = ["ROUGH", "largest", "reduce"]

# Numbers up to this size leave the solvers enough digits.
ROUGH = 1e3

# Rounding errors of sums of scores, relative to what was added.
_NOISE = 1e-14

# Above this size sums might overflow; the tests then compare scores scaled down.
_OVERFLOW, _SCALE = 1e290, 2.0**-60
_MOST = 1e300


@part
def largest(theta, edge):
    """The largest size of a score; NaN and infinities give infinity."""
    most = 0.0
    for i in range(theta.shape[0]):
        size = max(abs(theta[i]), abs(edge[i]))
        if not size <= most:
            most = size if size <= np.inf else np.inf
    return most


@part
def reduce(where, theta, edge, k, y, unit, certain):
    """Settle positions of the row (``edge[i]`` rewards the pair i - 1, i) and take them out.

    ``y`` and ``unit`` (of the full row, at ``where``) get 0 or 1 and ``certain`` for these. Returns
    the number of positions left, at the front of the arrays, and their budget.
    """
    n = theta.shape[0]
    verdict = np.empty(n, np.int8)
    raised = False
    while n > 0 and largest(theta[:n], edge[:n]) > ROUGH:
        _shift(theta[:n])
        settled = 0
        if k == 0 or k == n:
            verdict[:n] = 1 if k == n else 0
            settled = n
        else:
            settled = _by_exchange(theta[:n], edge[:n], k, verdict)
            if settled == 0 and largest(theta[:n], edge[:n]) > ROUGH:
                settled, forbidden = _by_best_subsets(theta[:n], edge[:n], k, verdict, raised)
                if settled == 0 and (raised or not forbidden):
                    break
                raised = settled == 0
        if settled > 0:
            n, k = _take_out(where, theta, edge, n, k, verdict, y, unit, certain)
    return n, k


@part
def _shift(theta):
    """Subtract the smallest score in size: every subset has size k, so nothing changes."""
    least = theta[0]
    for score in theta:
        if abs(score) < abs(least):
            least = score
    for i in range(theta.shape[0]):
        theta[i] = min(max(theta[i] - least, -_MOST), _MOST)


@part
def _take_out(where, theta, edge, n, k, verdict, y, unit, certain):
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
            y[where[i]] = verdict[i]
            unit[where[i]] = certain
            k -= verdict[i]
        else:
            where[left], theta[left], edge[left] = where[i], theta[i], edge[i]
            left += 1
    return left, k


@part
def _by_exchange(theta, edge, k, verdict):
    """Set ``verdict`` to 0 or 1 where the exchange test settles it, else -1; return how often."""
    n = theta.shape[0]
    upper, lower = np.empty(n), np.empty(n)
    for i in range(n):
        before, after = edge[i], edge[i + 1] if i + 1 < n else 0.0
        upper[i] = theta[i] + max(before, 0.0) + max(after, 0.0)
        lower[i] = theta[i] + min(before, 0.0) + min(after, 0.0)
        room = 2.0 + _NOISE * (abs(theta[i]) + abs(before) + abs(after))
        lower[i] -= room
    high = np.partition(lower, n - k)[n - k]  # k positions have this or more
    low = np.partition(upper, n - k - 1)[n - k - 1]  # n - k positions have this or less
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
def _by_best_subsets(theta, edge, k, verdict, raised):
    """The same by the best subsets; also whether a penalty that nobody pays could be raised.

    If nothing is settled and such penalties were not ``raised`` before, they are.
    """
    n = theta.shape[0]
    scale = _SCALE if largest(theta, edge) > _OVERFLOW else 1.0
    scores, pairs = scale * theta, scale * edge
    ahead, behind = _tables(scores, pairs, k), _tables(scores[::-1], _turned(pairs), k)
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
        _raise(theta, edge, k, unpaid, best / scale, margin / scale)
    return settled, forbidden


@part
def _trails(score, best, margin):
    return score < best - margin - _NOISE * abs(score)


@part
def _raise(theta, edge, k, unpaid, best, margin):
    """Penalties that are just large enough: with one of them no subset comes near the best."""
    n = theta.shape[0]
    for i in range(n):
        if unpaid[i]:
            edge[i] = 0.0
    table = _tables(theta, edge, k)
    penalty = best - margin - 1.0 - max(table[0, n, k], table[1, n, k])
    for i in range(n):
        if unpaid[i]:
            edge[i] = min(penalty, -ROUGH)


@part
def _turned(edge):
    """Pair scores of the row read from its end."""
    n = edge.shape[0]
    turned = np.zeros(n)
    for i in range(1, n):
        turned[i] = edge[n - i]
    return turned


@part
def _tables(theta, edge, k):
    """``[s, i, j]``: the best score of i positions with j selected, the last of them in state s."""
    n = theta.shape[0]
    table = np.full((2, n + 1, k + 1), -np.inf)
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
