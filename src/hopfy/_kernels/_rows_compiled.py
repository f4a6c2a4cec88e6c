# mypy: ignore-errors
"""Compiled pieces that the row maps share: finding the top, gathering candidates, powers.

A row is read twice, with vector instructions: once for its maximum, once to gather the few entries
within reach of it. Everything after that touches the candidates only.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from hopfy._kernels._compile import jit

__all__ = [
    "LANES",
    "as_float",
    "collect",
    "distances",
    "exp_of",
    "keep_below",
    "rest_powers",
    "row_top",
    "type_of",
]

BLOCK = 64


# --- floats as integers ---------------------------------------------------------------------------


@intrinsic
def as_float(_, bits):
    """The float with these bits."""
    target = types.float32 if bits == types.int32 else types.float64

    def codegen(context, builder, __, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(target))

    return target(bits), codegen


@intrinsic
def as_bits(_, value):
    """The bits of a float64."""

    def codegen(context, builder, __, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), codegen


def row_top(bits):
    """The largest value of a row given as raw bits, and whether NaN or +inf spoil the row."""
    raise NotImplementedError


def _row_top_for(integer):
    # Floats compare like integers once the negative ones are flipped, and integer maxima use vector
    # instructions where float maxima, because of NaN, do not.
    sign = integer(np.iinfo(integer).bits - 1)
    magnitude = integer(np.iinfo(integer).max)
    lowest = integer(np.iinfo(integer).min)
    infinity = integer(0x7F800000 if integer is np.int32 else 0x7FF0000000000000)

    def implementation(bits):
        top, widest = lowest, integer(0)
        for i in range(bits.shape[0]):
            v = bits[i]
            top = max(top, integer(v ^ integer(integer(v >> sign) & magnitude)))
            widest = max(widest, integer(v & magnitude))
        spoiled = widest > infinity or top >= infinity
        return as_float(integer(top ^ integer(integer(top >> sign) & magnitude))), spoiled

    return implementation


_row_top = {types.int32: _row_top_for(np.int32), types.int64: _row_top_for(np.int64)}


@overload(row_top, inline="always")
def _(bits):
    return _row_top[bits.dtype]


# --- candidates -----------------------------------------------------------------------------------


@intrinsic
def hits(_, row, start, bound):
    """Bits of the entries ``row[start : start + BLOCK] >= bound``, found with vector compares."""

    def codegen(context, builder, signature, arguments):
        array = context.make_array(row)(context, builder, arguments[0])
        element = context.get_data_type(row.dtype)
        block = ir.VectorType(element, BLOCK)
        first = builder.gep(array.data, [arguments[1]])
        entries = builder.load(builder.bitcast(first, block.as_pointer()))
        entries.align = row.dtype.bitwidth // 8
        lane = ir.Constant(ir.IntType(32), 0)
        splat = builder.insert_element(ir.Constant(block, ir.Undefined), arguments[2], lane)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
        splat = builder.shuffle_vector(splat, ir.Constant(block, ir.Undefined), lanes)
        above = builder.fcmp_ordered(">=", entries, splat)
        return builder.bitcast(above, ir.IntType(BLOCK))

    return types.int64(row, types.intp, row.dtype), codegen


@intrinsic
def lowest_bit(_, bits):
    """Position of the lowest set bit."""

    def codegen(context, builder, __, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@jit(fastmath={"contract"})  # reassociation could compare other differences than it stores
def collect(row, top, reach, distance, index):
    """Gather ``top - v`` and the position of every entry v with ``top - v < reach``.

    A block is compared at once with a bound that is loose by more than any rounding; the few entries
    that pass it are then compared exactly.
    """
    size = row.shape[0]
    bound = np.float64(top) - reach
    bound = type_of(row, bound - 1e-6 * abs(bound))
    count = 0
    if size < BLOCK:
        for i in range(size):
            below = np.float64(top) - np.float64(row[i])
            distance[count] = below
            index[count] = i
            count += below < reach
        return count
    for start in range(0, size, BLOCK):
        first = min(start, size - BLOCK)  # the last block overlaps the one before it
        found = hits(row, first, bound) & (np.int64(-1) << (start - first))
        while found:
            i = first + lowest_bit(found)
            found &= found - 1
            below = np.float64(top) - np.float64(row[i])
            distance[count] = below
            index[count] = i
            count += below < reach
    return count


@jit(fastmath={"contract"})
def distances(row, top, d):
    """``top - v`` for every entry v."""
    for i in range(row.shape[0]):
        d[i] = np.float64(top) - np.float64(row[i])


@jit
def type_of(row, value):
    """``value`` in the dtype of the row."""
    return row.dtype.type(value)


@jit
def keep_below(x, index, count, bound):
    """Drop the candidates at or beyond ``bound``, in place; return how many stay."""
    kept = 0
    for j in range(count):
        value = x[j]
        x[kept] = value
        index[kept] = index[j]
        kept += value < bound
    return kept


# --- powers ---------------------------------------------------------------------------------------
# Written in plain arithmetic so that loops over candidates become vector instructions, which calls
# into a mathematics library prevent. No reassociation here: the tricks with 2^52 rely on rounding.

_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # ln 2 in two parts
_ODD = tuple(1.0 / (2 * n + 1) for n in range(12))
_FACTORIALS = tuple(1.0 / math.factorial(n) for n in range(14))
_SHIFT = 1.5 * 2.0**52  # adding it rounds a small number to an integer, held in the low bits


@jit(fastmath={"contract"}, inline="always")
def log_of_rest(z):
    """``log(1 - z)`` for 0 <= z < 1, accurate for tiny z too."""
    rest = 1.0 - z
    bits = as_bits(rest)
    exponent = as_float((bits >> 52) | 0x4330000000000000) - (2.0**52 + 1022.0)
    mantissa = as_float((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000)  # in [1/2, 1)
    small = mantissa < 0.7071067811865476
    exponent = exponent - 1.0 if small else exponent
    mantissa = mantissa + mantissa if small else mantissa
    near = rest > 0.7071067811865476  # then 1 - z has lost digits that z still has
    f = -z if near else mantissa - 1.0
    k = 0.0 if near else exponent
    s = f / (2.0 + f)  # log(1 + f) = 2 artanh(s), and |s| < 0.172
    w = s * s
    series = _ODD[11]
    series = series * w + _ODD[10]
    series = series * w + _ODD[9]
    series = series * w + _ODD[8]
    series = series * w + _ODD[7]
    series = series * w + _ODD[6]
    series = series * w + _ODD[5]
    series = series * w + _ODD[4]
    series = series * w + _ODD[3]
    series = series * w + _ODD[2]
    series = series * w + _ODD[1]
    return k * _LN2_HIGH + (2.0 * s + (2.0 * s * w * series + k * _LN2_LOW))


@jit(fastmath={"contract"}, inline="always")
def exp_of(x):
    """``e^x`` for x <= 0; exactly 0 below -700."""
    bounded = x if x > -700.0 else -700.0
    shifted = bounded * 1.4426950408889634 + _SHIFT
    k = shifted - _SHIFT
    r = (bounded - k * _LN2_HIGH) - k * _LN2_LOW
    series = _FACTORIALS[13]
    series = series * r + _FACTORIALS[12]
    series = series * r + _FACTORIALS[11]
    series = series * r + _FACTORIALS[10]
    series = series * r + _FACTORIALS[9]
    series = series * r + _FACTORIALS[8]
    series = series * r + _FACTORIALS[7]
    series = series * r + _FACTORIALS[6]
    series = series * r + _FACTORIALS[5]
    series = series * r + _FACTORIALS[4]
    series = series * r + _FACTORIALS[3]
    series = series * r + _FACTORIALS[2]
    series = series * r + 1.0
    series = series * r + 1.0
    scaled = series * as_float((as_bits(shifted) + 1023) << 52)
    return scaled if x > -700.0 else 0.0


LANES = 8  # what the vector loop below takes at once; scratch arrays leave room for it


@jit(fastmath={"contract"})
def rest_powers(d, count, scale, exponent, out):
    """``out = (1 - d / scale)^exponent``, and 0 where d >= scale.

    The arrays are padded to whole vectors, so that a few candidates run as fast as many.
    """
    padded = -(-count // LANES) * LANES
    for j in range(count, padded):
        d[j] = np.inf
    for j in range(padded):
        z = d[j] / scale
        inside = z < 1.0
        power = exp_of(exponent * log_of_rest(z if inside else 0.0))
        out[j] = power if inside else 0.0
