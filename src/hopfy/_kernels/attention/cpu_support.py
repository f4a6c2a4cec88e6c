# mypy: ignore-errors
"""Compiled loops on the support: the second product of attention and its backward pass."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.attention.cpu_vectors import add_both, dot_and_add
from hopfy._kernels.rows.powers import log_of, powers_of
from hopfy._kernels.rows.powers_float32 import powers_of32
from hopfy._kernels.rows.scan import PADDING, pad
from hopfy._runtime.compilation import jit, part

__all__ = ["along_parameter", "backward", "combine", "gather", "through_map"]


# --- products on the support ----------------------------------------------------------------------


@jit
def gather(start, stop, weights, columns, edges, values, output, first_row):
    """Each row of the output is the sum of its selected values, by their weights."""
    size = values.shape[2]
    rows = output.shape[1]
    for r in range(start, stop):
        group, query = (first_row + r) // rows, (first_row + r) % rows
        first, last = edges[r], edges[r + 1]
        row, column = weights[first:last], columns[first:last]
        combine(row, column, last - first, values[group], output[group, query], size)


@part
def combine(weights, columns, count, values, output, size):
    for d in range(size):
        output[d] = 0
    i = 0
    while i + 4 <= count:
        a, b = values[columns[i]], values[columns[i + 1]]
        c, e = values[columns[i + 2]], values[columns[i + 3]]
        u, v, w, z = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for d in range(size):
            output[d] += u * a[d] + v * b[d] + w * c[d] + z * e[d]
        i += 4
    while i < count:
        a, u = values[columns[i]], weights[i]
        for d in range(size):
            output[d] += u * a[d]
        i += 1


# --- backward -------------------------------------------------------------------------------------


@part
def through_map(p, v, count, alpha, kind, g, powers):
    """Apply the map's (symmetric) Jacobian at weights p to v, in place.

    ``kind`` is 0 for entmax, 1 for normmax, 2 for k-subsets; g and powers are float64 scratch.
    """
    if kind == 1:
        _through_normmax(p, v, count, alpha, g, powers)
    elif kind == 2:
        _through_subsets(p, v, count)
    elif alpha == 2.0 or alpha == 1.5:
        _through_simple(p, v, count, alpha)
    elif alpha == np.inf:
        v[:count] = 0
    else:
        _through_powers(p, v, count, alpha, g, powers)


@part
def _through_simple(p, v, count, alpha):
    """Sparsemax and 1.5-entmax: slopes 1 and the roots of the weights."""
    total = p[0] - p[0]
    mean = total
    if alpha == 2.0:
        for i in range(count):
            mean += v[i]
        mean /= count
        for i in range(count):
            v[i] -= mean
    else:
        for i in range(count):
            slope = math.sqrt(p[i])
            total += slope
            mean += slope * v[i]
        mean /= total
        for i in range(count):
            v[i] = math.sqrt(p[i]) * (v[i] - mean)


@part
def _through_powers(p, v, count, alpha, g, powers):
    """g (v - mean_g(v)) with g = p^(2 - alpha), centered at the steepest entry."""
    for i in range(count):
        g[i] = p[i]
    pad(g, count)
    if p.itemsize == 4 and alpha < 2.0:
        powers_of32(g, count, 2.0 - alpha, powers)
    else:
        powers_of(g, count, 2.0 - alpha, powers)
    steepest, total, mean = 0, 0.0, 0.0
    for i in range(count):
        powers[i] = min(powers[i], 1e150)
        steepest = i if powers[i] > powers[steepest] else steepest
        total += powers[i]
    origin = np.float64(v[steepest])
    for i in range(count):
        mean += powers[i] * (v[i] - origin)
    mean /= total
    for i in range(count):
        v[i] = powers[i] * ((v[i] - origin) - mean)


@part
def _through_subsets(p, v, count):
    total, between = p[0] - p[0], 0
    for i in range(count):
        if p[i] < 1:
            total += v[i]
            between += 1
    mean = total / max(between, 1)
    for i in range(count):
        v[i] = v[i] - mean if p[i] < 1 else 0


@part
def _through_normmax(p, v, count, alpha, g, powers):
    if alpha == np.inf:
        v[:count] = 0
        return
    top, mass, mean = 0.0, 0.0, 0.0
    for i in range(count):
        top = max(top, p[i])
        mean += p[i] * v[i]
    for i in range(count):
        g[i] = p[i] / top
    if alpha == 2.0:
        for i in range(count):
            mass += g[i] * g[i]
            powers[i] = 1.0
    else:
        pad(g, count)
        powers_of(g, count, alpha, powers)
        for i in range(count):
            mass += powers[i]
        powers_of(g, count, 2.0 - alpha, powers)
    norm = mass ** (1.0 / alpha)  # in units of the top
    factor = top * norm ** (alpha - 1.0) / (alpha - 1.0)
    total = 0.0
    for i in range(count):
        powers[i] = factor * min(powers[i], 1e150) * (v[i] - mean)
        total += powers[i]
    for i in range(count):
        v[i] = powers[i] - p[i] * total


@part
def _phi(t):
    r""":math:`(t e^t - e^t + 1)/t^2`."""
    if abs(t) >= 0.5:
        return (t * math.exp(t) - math.expm1(t)) / (t * t)
    term, series = 1.0, 0.0
    for n in range(14):
        series += term / (n + 2)
        term *= t / (n + 1)
    return series


@part
def along_parameter(p, through, count, alpha, kind):
    """``-<d grad Omega / d alpha, J v>``, given J v: the parameter's part of the gradient."""
    total = 0.0
    if alpha == np.inf:
        return total
    if kind == 0:
        for i in range(count):
            log = log_of(np.float64(p[i]))
            total -= log * log * _phi((alpha - 1.0) * log) * through[i]
        return total
    mass, log_mass = 0.0, 0.0
    for i in range(count):
        log = log_of(np.float64(p[i]))
        power = math.exp(alpha * log)
        mass += power
        log_mass += power * log
    log_norm = math.log(mass) / alpha
    slope = (log_mass / mass - log_norm) / alpha
    for i in range(count):
        log_r = log_of(np.float64(p[i])) - log_norm
        total -= math.exp((alpha - 1.0) * log_r) * (log_r - (alpha - 1.0) * slope) * through[i]
    return total


@part
def _along_k(p, v, count):
    """One more unit is shared by the entries between 0 and 1: the mean of their cotangents."""
    total, between = 0.0, 0
    for i in range(count):
        if p[i] < 1:
            total += v[i]
            between += 1
    return total / max(between, 1)


@jit
def backward(
    start,
    stop,
    weights,
    columns,
    edges,
    kept,
    inputs,
    cotangent,
    gradients,
    alpha,
    in_alpha,
    kind,
    scale,
    others,
):
    """Gradients of queries, keys and values, one group at a time, on the support only.

    A group owns its keys and values: threads never share a row. ``kept`` holds what dropout
    multiplied each weight with, or nothing; ``in_alpha`` one number per row, or nothing. ``others``
    is None for sparsemax and 1.5-entmax with constant alpha: then no other map is compiled.
    """
    queries, keys, values = inputs
    in_queries, in_keys, in_values = gradients
    rows, size, value_size = queries.shape[1], queries.shape[2], values.shape[2]
    room = keys.shape[1] + PADDING
    slope, g, powers = np.empty(room, weights.dtype), np.empty(room), np.empty(room)
    for group in range(start, stop):
        for m in range(rows):
            first = edges[group * rows + m]
            count = edges[group * rows + m + 1] - first
            if count == 0:
                continue
            p, column = weights[first : first + count], columns[first : first + count]
            outside, query = cotangent[group, m], queries[group, m]
            for i in range(count):
                value, in_value = values[group, column[i]], in_values[group, column[i]]
                factor = p[i] * kept[first + i] if kept.size else p[i]
                along = dot_and_add(value_size, outside, value, factor, in_value)
                slope[i] = along * kept[first + i] if kept.size else along
            parameter = alpha[group * rows + m if alpha.size > 1 else 0]
            if others is None:
                _through_simple(p, slope, count, parameter)
            else:
                if in_alpha.size and kind == 2:
                    in_alpha[group * rows + m] = _along_k(p, slope, count)
                through_map(p, slope, count, parameter, kind, g, powers)
                if in_alpha.size and kind != 2:
                    in_alpha[group * rows + m] = along_parameter(p, slope, count, parameter, kind)
            in_query = in_queries[group, m]
            for i in range(count):
                key, in_key = keys[group, column[i]], in_keys[group, column[i]]
                add_both(size, slope[i] * scale, query, in_key, key, in_query)
