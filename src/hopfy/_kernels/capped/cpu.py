# mypy: ignore-errors
r"""Compiled rows of capped sparsemax, forward and backward.

With distances :math:`d_i = \max\theta - \theta_i` the weights are :math:`\min(u_i, (S - d_i)_+)` for the
root S of an increasing, piecewise linear function. It is found roughly, from a guess of where so many
entries lie that their bounds add up to one, and then exactly on its linear piece. Where S is large it is
found once more with distances from an entry close to it, which keeps all digits.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from hopfy._kernels.capped.reference import poor_row, tolerance
from hopfy._kernels.rows.calls import run_backward, run_checked
from hopfy._kernels.rows.scan import (
    LANES,
    PADDING,
    collect,
    fill,
    pad,
    short_top,
    support,
    wide_tops,
)
from hopfy._runtime.compilation import inlined, jit, part

__all__ = ["centered", "solve", "vjp"]

SHORT = 128  # in rows up to this size every entry is a candidate
_STEPS = 200  # the root search needs about five
_HALVINGS = 6  # of the interval in which S is guessed
_PIECES = 4  # from a root in float32 the next linear piece is nearly always the last
_SETTLED = 1e-9  # such a change of S moves no weight of float32
_FAR = 64.0  # up to this distance the root in float32 lies on the right piece, or next to it


def solve(scores, upper):
    """Weights (..., N) of scores (..., N); ``upper`` broadcasts to the scores."""
    kernel = _short_rows if scores.shape[-1] <= SHORT else _long_rows
    slack = tolerance(scores.dtype, scores.shape[-1])
    return run_checked(kernel, scores, (_table(upper, scores), slack), poor_row)


def vjp(weights, upper, cotangent):
    """Gradient with respect to the scores."""
    return run_backward(centered, weights, _table(upper, weights), cotangent)


def _table(upper, rows):
    """The upper bounds as an array (1 or rows, 1 or N) in the dtype of the rows."""
    upper = upper.detach().to(rows.dtype)
    size = rows.shape[-1]
    columns = size if upper.ndim and upper.shape[-1] == size else 1
    if upper.ndim == 0 or all(side == 1 for side in upper.shape[:-1]):
        return upper.reshape(1, columns).contiguous().numpy()
    full = torch.broadcast_to(upper, (*rows.shape[:-1], columns))
    return full.reshape(-1, columns).contiguous().numpy()


@jit
def _short_rows(start, stop, scores, bits, options, weights):
    """Rows of up to SHORT entries: all of them are candidates.

    ``options`` are the upper bounds and the tolerance of their sum. A row whose bounds add up to less
    than one takes all of them; the last such row is returned, or -1.
    """
    upper, slack = options
    size = scores.shape[1]
    d, caps = np.empty(size + PADDING, scores.dtype), np.empty(size + PADDING, scores.dtype)
    room, deviations = 0.0, 0.0
    poor = np.int64(-1)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        if r == start or upper.shape[0] > 1:
            room = _copy_caps(upper, r, size, caps)
            deviations = _quantile(1.0 / max(room, 1.0))
        top, spoiled = short_top(bits[r])
        if spoiled or top == -np.inf:
            fill(out, np.nan if spoiled else 0.0)
            continue
        total, squares = _distances(row, top, d)
        padded = _close(d, caps, size)
        own = room if total < np.inf else _room(d, caps, padded)
        if own <= 1.0:
            for i in range(size):
                out[i] = caps[i] if row[i] > -np.inf else 0.0
            poor = r if own < 1.0 - slack else poor
            continue
        mean = total / size
        guess = mean - deviations * math.sqrt(max(squares / size - mean * mean, 0.0))
        guess = guess + 0.5 * room / size if guess > 0.0 else 1.0  # NaN: entries that are masked
        s = _root(d, caps, padded, 0.0, _farthest(d, size) + 1.0, guess)
        if _is_far(row, s):  # distances from a place near S keep the digits
            top = row[_last_below(d, size, s)]
            for i in range(size):
                d[i] = top - row[i]
            s = _root(d, caps, padded, *_around(d, s))
            s = _exact_root(d, caps, padded, s)
        else:
            s = _on_its_piece(row, top, caps, s)
        for i in range(size):
            out[i] = _clip(s - (np.float64(top) - np.float64(row[i])), np.float64(caps[i]))
    return poor


@jit
def _long_rows(start, stop, scores, bits, options, weights):
    """The same for longer rows: most entries are ruled out first."""
    upper, slack = options
    size = scores.shape[1]
    d, caps = np.empty(size + PADDING), np.empty(size + PADDING)
    lanes, index = np.empty(LANES), np.empty(size + PADDING, np.int64)
    poor = np.int64(-1)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        top, spoiled = wide_tops(bits[r], lanes)
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or top == -np.inf:
            continue
        bounds = upper[r if upper.shape[0] > 1 else 0]
        guess, reach = _guess(np.float64(top), lanes, bounds)
        count = np.int64(0)
        for _ in range(_STEPS):
            count = collect(row, np.float64(top), reach, d, index)
            for j in range(count):
                caps[j] = _cap(bounds, index[j])
            if reach == np.inf or _total(d, caps, _close(d, caps, count), reach) >= 1.0:
                break
            reach = 2.0 * reach if reach < 64.0 else np.inf
        padded = _close(d, caps, count)
        room = _room(d, caps, padded)
        if room <= 1.0:
            for j in range(count):
                out[index[j]] = caps[j]
            poor = r if room < 1.0 - slack else poor
            continue
        high = reach if reach < np.inf else _farthest(d, count) + 1.0
        s = _root(d, caps, padded, 0.0, high, guess)
        if _is_far(row, s):
            base = np.float64(row[index[_last_below(d, count, s)]])
            for j in range(count):
                d[j] = base - np.float64(row[index[j]])
            s = _root(d, caps, padded, *_around(d, s))
        s = _exact_root(d, caps, padded, s)
        for j in range(count):
            out[index[j]] = _clip(s - d[j], caps[j])
    return poor


@inlined
def _is_far(row, s):
    """Whether distances from the top, in float64, would lose digits: they are exact for float32."""
    return s > (_FAR if row.itemsize == 4 else 1.0)


@part
def _distances(row, top, d):
    """Write ``top - row``; return the sums of the distances and of their squares."""
    zero = d.dtype.type(0.0)
    total, squares = zero, zero
    for i in range(row.shape[0]):
        distance = top - row[i]
        d[i] = distance
        total += distance
        squares += distance * distance
    return np.float64(total), np.float64(squares)


@inlined
def _quantile(share):
    """How many deviations above the mean this share of normal numbers lies (Hastings, to 3e-3)."""
    tail = min(share, 1.0 - share)
    t = math.sqrt(-2.0 * math.log(max(tail, 1e-30)))
    z = t - (2.30753 + 0.27061 * t) / (1.0 + (0.99229 + 0.04481 * t) * t)
    return z if share < 0.5 else -z


@inlined
def _cap(bounds, i):
    cap = np.float64(bounds[i if bounds.shape[0] > 1 else 0])
    return cap if cap < 1.0 else 1.0


@part
def _copy_caps(upper, r, size, caps):
    """Write the bounds of a row; return their sum."""
    bounds = upper[r if upper.shape[0] > 1 else 0]
    one = caps.dtype.type(1.0)
    if bounds.shape[0] > 1:
        for i in range(size):
            caps[i] = bounds[i] if bounds[i] < one else one
    else:
        cap = bounds[0] if bounds[0] < one else one
        for i in range(size):
            caps[i] = cap
    room = 0.0
    for i in range(size):
        room += np.float64(caps[i])
    return room


@inlined
def _close(d, caps, count):
    """Fill up with entries that get no weight; return the padded count."""
    for j in range(PADDING):
        caps[count + j] = 0.0
    return pad(d, count)


@part
def _guess(top, lanes, bounds):
    """Where S may lie, and how far below the top an entry may have weight: both to be verified.

    By the first bounds, so many of the largest entries fill the simplex; the largest entries of the
    lanes stand for the row's.
    """
    typical, largest = 0.0, 0.0
    sampled = min(bounds.shape[0], 64)
    for i in range(sampled):
        typical += _cap(bounds, np.int64(i)) / sampled
        largest = max(largest, _cap(bounds, np.int64(i)))
    if typical >= 1.0:
        return 1.0, 1.0
    wanted = min(math.ceil(1.0 / max(typical, 0.5 / LANES)), LANES // 2)
    total = 0.0
    for j in range(LANES):
        total += top - lanes[j]
    low, high = 0.0, 2.0 * total / LANES  # half of the lanes are nearer than twice their mean
    high = high if high < np.inf else 64.0  # lanes that are masked
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside = 0.0
        for j in range(LANES):
            inside += 1.0 if top - lanes[j] <= middle else 0.0
        if inside >= wanted:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high + typical), high + largest


@part
def _room(d, caps, padded):
    """The sum of the upper bounds of the entries that are there."""
    total = 0.0
    for j in range(padded):
        total += np.float64(caps[j]) if d[j] < np.inf else 0.0
    return total


@part
def _farthest(d, count):
    """The largest finite distance."""
    farthest = 0.0
    for j in range(count):
        farthest = max(farthest, np.float64(d[j]) if d[j] < np.inf else 0.0)
    return farthest


@part
def _last_below(d, count, s):
    """The place of the largest distance that is not above s, as far as rounding can tell."""
    limit = s * (1.0 + 8.0 * _epsilon(d))
    place, last = np.int64(0), -1.0
    for j in range(count):
        if last < np.float64(d[j]) <= limit:
            place, last = j, np.float64(d[j])
    return place


@inlined
def _around(d, s):
    """Bounds of the root S once distances count from the entry that `_last_below` found for s; a guess."""
    error = 16.0 * s * _epsilon(d)
    return -1.0 - error, 2.0 + error, 0.0


@inlined
def _epsilon(d):
    return 1.2e-7 if d.itemsize == 4 else 2.3e-16


@inlined
def _clip(room, cap):
    room = room if room > 0.0 else 0.0
    return room if room < cap else cap


@part
def _total(d, caps, padded, s):
    total = 0.0
    for j in range(padded):
        total += _clip(s - d[j], caps[j])
    return total


@part
def _root(d, caps, padded, low, high, guess):
    """Root in [low, high] of ``sum clip(s - d, 0, caps) = 1``, in the dtype of ``d``."""
    s = guess if low < guess < high else 0.5 * (low + high)
    resolution = 2.0 * _epsilon(d)
    for _ in range(_STEPS):
        total, slope = _step(d, caps, padded, d.dtype.type(s))
        excess = total - 1.0
        if excess == 0.0:
            return s
        if excess > 0.0:
            high = s
        else:
            low = s
        following = s - excess / slope if slope > 0.0 else low - 1.0
        near = resolution * (1.0 + math.fabs(s))
        if slope > 0.0 and math.fabs(following - s) <= near:
            return following
        if following <= low or following >= high:
            following = 0.5 * (low + high)
        if high - low <= near:
            break
        s = following
    return s


@part
def _step(d, caps, padded, s):
    """The sum of the weights at s, and how many entries are free."""
    zero, one = d.dtype.type(0.0), d.dtype.type(1.0)
    total, slope = zero, zero
    for j in range(padded):
        room = s - d[j]
        positive = one if room > zero else zero
        room = room if room > zero else zero
        slope += positive if room < caps[j] else zero
        total += room if room < caps[j] else caps[j]
    return np.float64(total), np.float64(slope)


@part
def _exact_root(d, caps, padded, s):
    """The root of the linear piece that s lies on, in float64; s itself where it is flat."""
    total, count = 0.0, 0.0
    edge, zero = d.dtype.type(s), d.dtype.type(0.0)
    for j in range(padded):
        room = edge - d[j]
        full = np.float64(caps[j]) if room > zero else 0.0
        own = np.float64(d[j]) if room > zero else 0.0
        count += (1.0 if room > zero else 0.0) if room < caps[j] else 0.0
        total += own if room < caps[j] else -full
    return (1.0 + total) / count if count > 0.0 else s


@part
def _on_its_piece(row, top, caps, s):
    """`_exact_root` with distances in float64; entries that s takes for others are taken anew."""
    for _ in range(_PIECES):
        total, count = 0.0, 0.0
        for i in range(row.shape[0]):
            distance, cap = np.float64(top) - np.float64(row[i]), np.float64(caps[i])
            room = s - distance
            full = cap if room > 0.0 else 0.0
            own = distance if room > 0.0 else 0.0
            count += (1.0 if room > 0.0 else 0.0) if room < cap else 0.0
            total += own if room < cap else -full
        following = (1.0 + total) / count if count > 0.0 else s
        if math.fabs(following - s) <= _SETTLED:
            return following
        s = following
    return s


@jit
def centered(start, stop, weights, cotangent, upper, gradient):
    """Rows [start, stop): the cotangent, centered over the free entries, 0 < weight < upper bound.

    ``upper`` is (1 or rows, 1 or N).
    """
    index = np.empty(weights.shape[1], np.int64)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        fill(out, np.nan if y[0] != y[0] else 0.0)
        bounds = upper[r if upper.shape[0] > 1 else 0]
        found = support(y, index)
        total, count = 0.0, np.int64(0)
        for j in range(found):
            i = index[j]
            index[count] = i
            free = y[i] < bounds[i if bounds.shape[0] > 1 else 0]
            total += np.float64(v[i]) if free else 0.0
            count += free
        for j in range(count):
            out[index[j]] = v[index[j]] - total / count
