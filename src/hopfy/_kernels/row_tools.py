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
from numba.core import cgutils
from numba.extending import intrinsic

from hopfy._runtime.compilation import jit

__all__ = [
    "LANES",
    "PADDING",
    "collect",
    "exp_of",
    "keep_below",
    "pad",
    "powers_of",
    "rest_powers",
    "row_tops",
    "support",
    "type_of",
]

LANES = 32  # a row's maxima come from this many interleaved parts of it
BLOCK = 64  # entries that are compared at once
PADDING = 16  # candidates are filled up to a multiple of this, so that no loop has a scalar rest


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


# --- maxima ---------------------------------------------------------------------------------------


@jit
def row_tops(row, bits, lanes):
    """The largest value of a row, whether NaN or +inf spoil it, and the maxima of parts of it.

    ``bits`` are the row's entries as integers. Entry i belongs to part ``i % LANES``, except that the
    last ``size % LANES`` entries of a long row belong to none.
    """
    if row.shape[0] >= LANES:
        return _wide_tops(bits, lanes)
    lanes[:] = -np.inf
    top, spoiled = type_of(row, -np.inf), False
    for i in range(row.shape[0]):
        lanes[i] = row[i]
        top = row[i] if row[i] > top else top
        spoiled |= not row[i] < np.inf
    return top, spoiled


@intrinsic
def _wide_tops(_, bits, lanes):
    width = bits.dtype.bitwidth
    real = types.float32 if width == 32 else types.float64
    infinity = 0x7F800000 if width == 32 else 0x7FF0000000000000

    def codegen(context, builder, signature, arguments):
        integer = ir.IntType(width)
        vector = ir.VectorType(integer, LANES)
        array = context.make_array(bits)(context, builder, arguments[0])
        size = builder.extract_value(array.shape, 0)
        step = ir.Constant(size.type, LANES)

        def keys(first):
            place = builder.bitcast(builder.gep(array.data, [first]), vector.as_pointer())
            entries = builder.load(place)
            entries.align = width // 8
            return _ordered(builder, entries, width)

        def larger(a, b):
            return builder.select(builder.icmp_signed(">", a, b), a, b)

        def smaller(a, b):
            return builder.select(builder.icmp_signed("<", a, b), a, b)

        start = keys(ir.Constant(size.type, 0))
        high = cgutils.alloca_once_value(builder, start)
        low = cgutils.alloca_once_value(builder, start)
        end = builder.sub(size, ir.Constant(size.type, LANES - 1))
        with cgutils.for_range_slice(builder, step, end, step, size.type) as (i, _):
            found = keys(i)
            builder.store(larger(builder.load(high), found), high)
            builder.store(smaller(builder.load(low), found), low)
        rest = keys(builder.sub(size, step))  # the last entries, some of them for the second time
        parts = builder.load(high)
        top = _extreme(builder, "smax", larger(parts, rest))
        bottom = _extreme(builder, "smin", smaller(builder.load(low), rest))
        # In this order NaN is above +inf or, with its sign bit set, below -inf.
        spoiled = builder.or_(
            builder.icmp_signed(">=", top, ir.Constant(integer, infinity)),
            builder.icmp_signed("<", bottom, ir.Constant(integer, -infinity - 1)),
        )
        maxima = builder.bitcast(
            _ordered(builder, parts, width), ir.VectorType(context.get_value_type(real), LANES)
        )
        doubles = ir.VectorType(ir.DoubleType(), LANES)
        if width == 32:
            maxima = builder.fpext(maxima, doubles)
        out = context.make_array(lanes)(context, builder, arguments[1])
        builder.store(maxima, builder.bitcast(out.data, doubles.as_pointer())).align = 8
        top = builder.bitcast(_ordered(builder, top, width), context.get_value_type(real))
        return context.make_tuple(builder, signature.return_type, (top, spoiled))

    return types.Tuple((real, types.boolean))(bits, lanes), codegen


def _ordered(builder, bits, width):
    """Floats compare like integers once the negative ones are flipped; flipping twice undoes it.

    Integer maxima use vector instructions where float maxima, because of NaN, do not.
    """
    sign, magnitude = width - 1, 2 ** (width - 1) - 1
    if isinstance(bits.type, ir.VectorType):
        sign, magnitude = [sign] * LANES, [magnitude] * LANES
    negative = builder.ashr(bits, ir.Constant(bits.type, sign))
    return builder.xor(bits, builder.and_(negative, ir.Constant(bits.type, magnitude)))


def _extreme(builder, name, vector):
    """The largest ("smax") or smallest ("smin") entry of a vector of integers."""
    element = vector.type.element
    reduce = builder.module.declare_intrinsic(
        f"llvm.vector.reduce.{name}.v{LANES}i{element.width}",
        (),
        ir.FunctionType(element, [vector.type]),
    )
    return builder.call(reduce, [vector])


# --- candidates -----------------------------------------------------------------------------------


@intrinsic
def hits(_, row, start, bound):
    """Bits of the entries ``row[start : start + BLOCK] > bound``, found with vector compares."""

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
        above = builder.fcmp_ordered(">", entries, splat)
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
    bound = type_of(row, bound - 1e-6 * abs(bound) - 1e-30)
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


@jit
def support(weights, index):
    """The positions of the positive weights; returns how many there are."""
    size = weights.shape[0]
    zero = type_of(weights, 0.0)
    count = 0
    if size < BLOCK:
        for i in range(size):
            index[count] = i
            count += weights[i] > zero
        return count
    for start in range(0, size, BLOCK):
        first = min(start, size - BLOCK)
        found = hits(weights, first, zero) & (np.int64(-1) << (start - first))
        while found:
            index[count] = first + lowest_bit(found)
            found &= found - 1
            count += 1
    return count


@jit
def pad(x, count):
    """Fill up with infinities; return the padded count."""
    for j in range(PADDING):
        x[count + j] = np.inf
    return -(-count // PADDING) * PADDING


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
    exponent, mantissa = _split(1.0 - z)
    near = z < 0.2928932188134524  # then 1 - z has lost digits that z still has
    return _log_near_one(0.0 if near else exponent, -z if near else mantissa - 1.0)


@jit(fastmath={"contract"}, inline="always")
def log_of(x):
    """``log(x)`` for positive x (numbers too small to be normal count as the smallest normal)."""
    exponent, mantissa = _split(x if x > 2.2250738585072014e-308 else 2.2250738585072014e-308)
    return _log_near_one(exponent, mantissa - 1.0)


@jit(fastmath={"contract"}, inline="always")
def _split(x):
    """Write x as ``2^exponent mantissa`` with the mantissa between sqrt(1/2) and sqrt(2)."""
    bits = as_bits(x)
    exponent = as_float((bits >> 52) | 0x4330000000000000) - (2.0**52 + 1022.0)
    mantissa = as_float((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000)  # in [1/2, 1)
    small = mantissa < 0.7071067811865476
    return (exponent - 1.0 if small else exponent), (mantissa + mantissa if small else mantissa)


@jit(fastmath={"contract"}, inline="always")
def _log_near_one(k, f):
    """``k log 2 + log(1 + f)`` for small f."""
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
    """``e^x``; exactly 0 below -700, and e^700 above 700."""
    bounded = x if x > -700.0 else -700.0
    bounded = bounded if bounded < 700.0 else 700.0
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


@jit(fastmath={"contract"})
def rest_powers(d, count, scale, exponent, out):
    """``out = (1 - d / scale)^exponent``, and 0 where d >= scale; d is padded."""
    for j in range(-(-count // 8) * 8):
        z = d[j] / scale
        inside = z < 1.0
        power = exp_of(exponent * log_of_rest(z if inside else 0.0))
        out[j] = power if inside else 0.0


@jit(fastmath={"contract"})
def powers_of(x, count, exponent, out):
    """``out = x^exponent`` for positive x, and at most e^700; x is padded."""
    for j in range(-(-count // 8) * 8):
        out[j] = exp_of(exponent * log_of(x[j]))
