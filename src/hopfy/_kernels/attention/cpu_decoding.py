# mypy: ignore-errors
r"""Compiled steps of exact sparse decoding: one query over many keys, of which few are read.

Each key has a code, its entries rounded to 8 bits, and a bound on what that loses: with the code's
vector :math:`c_i` and :math:`e \ge \|k_i - c_i\|` for all keys of a page,
:math:`|q^\top k_i - q^\top c_i| \le \|q\| e`. The threshold of a map grows with every score, so the
threshold of lower bounds is a lower bound :math:`\tau_0` of the threshold: a key whose upper bound
does not exceed it has weight 0, exactly. Only the others are read.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.attention.cpu_select import fold, weigh_powers
from hopfy._kernels.rows.scan import PADDING
from hopfy._kernels.threshold.cpu import bounding_power, bounding_step, root
from hopfy._runtime.compilation import jit, part

__all__ = ["PAGE", "decode", "encode"]

PAGE = 64  # keys per page: their codes lie side by side, entry by entry
_LANES = 8
_MANY = 4096


@jit
def encode(start, stop, keys, codes, units, errors, first, last):
    """Codes of the keys [first, last) of the groups [start, stop), and the bound of each page.

    ``codes`` is (G, pages, D, PAGE). ``units`` scales a code back to the key. A bound holds
    what rounding to 8 bits loses, and what float32 loses in the product of a query and a code.
    """
    size = keys.shape[2]
    for g in range(start, stop):
        for i in range(first, last):
            key = keys[g, i]
            largest, norm = 0.0, 0.0
            for d in range(size):
                value = np.float64(key[d])
                largest = max(largest, abs(value))
                norm += value * value
            unit = np.float32(largest / 127.0)
            units[g, i] = unit
            lost = 0.0
            for d in range(size):
                value = np.float64(key[d])
                code = round(value / np.float64(unit)) if unit > 0 else 0.0
                code = max(-127.0, min(127.0, code))
                codes[g, i // PAGE, d, i % PAGE] = np.int8(code)
                rest = value - np.float64(unit) * code
                lost += rest * rest
            bound = math.sqrt(lost) * (1 + 1e-6) + (size + 8) * 1.2e-7 * math.sqrt(norm)
            place = i // PAGE
            if i % PAGE == 0 or bound > errors[g, place]:
                errors[g, place] = np.float32(bound * (1 + 1e-6))


@part
def _bounds(query, length, codes, units, errors, low, high, upper, lanes):
    """Upper bounds of the products of a query with the keys [low, high), and maxima of lower ones.

    ``lanes`` gets, for every page, the largest lower bounds of its keys 0, 8, ..., then 1, 9, ...
    Returns how many lanes there are.
    """
    size, used = query.shape[0], 0
    total = np.empty(PAGE, np.float32)
    for p in range(low // PAGE, (high + PAGE - 1) // PAGE):
        block = codes[p]
        for j in range(PAGE):
            total[j] = 0
        for d in range(size):
            factor, row = query[d], block[d]
            for j in range(PAGE):
                total[j] += factor * np.float32(row[j])
        begin, slack = p * PAGE, np.float32(length * errors[p] * (1.0 + 1e-6))
        for j in range(PAGE):
            total[j] *= units[begin + j]
        for j in range(low - begin):
            total[j] = -np.inf
        for j in range(high - begin, PAGE):
            total[j] = -np.inf
        for i in range(max(low, begin), min(high, begin + PAGE)):
            upper[i - low] = total[i - begin] + slack
        for j in range(_LANES):
            best = total[j]
            for i in range(j + _LANES, PAGE, _LANES):
                best = best if best > total[i] else total[i]
            lanes[used + j] = best - slack
        used += _LANES
    return used


@part
def _lower_threshold(lanes, used, gamma, margin, fewer, x):
    """A lower bound of the threshold of scores, given lower bounds of some of them."""
    held = fold(lanes, used, fewer)
    top = fewer[0]
    for i in range(held):
        top = max(top, fewer[i])
    part = lanes
    if used > _MANY // _LANES:  # part of the scores has a lower threshold than all of them
        part, used = fewer, held
    s = 1.0
    power = bounding_power(gamma)
    if power:
        for i in range(used):
            x[i] = (np.float64(top) - np.float64(part[i])) / margin
        for _ in range(6):
            lower = bounding_step(x, used, s, power)
            if not lower < s:
                break
            s = lower
        s = min(1.0, s * (1.0 + 1e-9))
    return np.float64(top) - s * margin * (1.0 + 1e-9)


@part
def _scaled(query, scale, out):
    """The query times the scale, in float32, and an upper bound of its length."""
    length = 0.0
    for d in range(query.shape[0]):
        out[d] = np.float32(query[d] * scale)
        length += np.float64(out[d]) * np.float64(out[d])
    # The rounding of the scaled query belongs to the error of the products, too.
    return math.sqrt(length) * (1.0 + 1e-6)


@part
def _reached(upper, count, threshold, margin, chosen):
    """The keys whose upper bounds reach the threshold, up to rounding; returns how many."""
    cut = np.float32(threshold - 1e-6 * (abs(threshold) + margin))
    found = 0
    for i in range(count):
        chosen[found] = i
        found += upper[i] >= cut
    return found


@part
def _distances(query, keys, low, chosen, count, scale, margin, scores, distance):
    """Distances of the chosen keys' exact scores to the largest of them, in margins."""
    top = -np.inf
    for j in range(count):
        key = keys[low + chosen[j]]
        total = 0.0
        for d in range(query.shape[0]):
            total += np.float64(query[d]) * np.float64(key[d])
        scores[j] = total * scale
        top = max(top, scores[j])
    for j in range(count):
        distance[j] = (top - scores[j]) / margin


@part
def _combined(weights, count, values, low, chosen, output):
    """The chosen values by their weights, in ``output``; returns how many have weight."""
    support = 0
    for j in range(count):
        if weights[j] > 0:
            support += 1
            weight, value = weights[j], values[low + chosen[j]]
            for d in range(output.shape[0]):
                output[d] += weight * value[d]
    return support


@jit
def decode(
    start,
    stop,
    queries,
    keys,
    values,
    codes,
    units,
    errors,
    lows,
    highs,
    repeat,
    scale,
    alpha,
    norm,
    output,
    read,
    supports,
):
    """Rows [start, stop) of queries (G * repeat, D), each over its keys [low, high).

    ``read`` gets how many keys were read for each row, ``supports`` how many have weight.
    """
    room = 1
    for r in range(start, stop):
        room = max(room, highs[r] - lows[r])
    upper, fewer = np.empty(room, np.float32), np.empty(room, np.float32)
    lanes = np.empty(room // PAGE * _LANES + 2 * _LANES, np.float32)
    x, distance = np.empty(room + PADDING), np.empty(room + PADDING)
    powers, weights = np.empty(room + PADDING), np.empty(room + PADDING)
    chosen, query = np.empty(room, np.int64), np.empty(queries.shape[1], np.float32)
    for r in range(start, stop):
        g, low, high = r // repeat, lows[r], highs[r]
        output[r] = 0
        read[r] = supports[r] = 0
        if high <= low:
            continue
        exponent = 1.0 / (alpha[r if alpha.size > 1 else 0] - 1.0)
        gamma = exponent + 1.0 if norm else exponent
        margin = 1.0 if norm else exponent
        length = _scaled(queries[r], scale, query)
        used = _bounds(query, length, codes[g], units[g], errors[g], low, high, upper, lanes)
        threshold = _lower_threshold(lanes, used, gamma, margin, fewer, x)
        count = _reached(upper, high - low, threshold, margin, chosen)
        _distances(queries[r], keys[g], low, chosen, count, scale, margin, x, distance)
        s, kept = root(distance, chosen, count, 1.0, gamma, 1.0, 1e-15, powers)
        weigh_powers(weights, distance, kept, s, exponent, powers)
        read[r] = count
        supports[r] = _combined(weights, kept, values[g], low, chosen, output[r])
