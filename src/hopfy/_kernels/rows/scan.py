# mypy: ignore-errors
"""The passes over a whole row: its maximum, the entries within reach of it, its support.

A row is read twice, with vector instructions: once for its maximum, once to gather the few entries
within reach of it. Everything after that touches these candidates only.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopfy._kernels.rows.bits import as_float, ordered, ordered_lanes
from hopfy._runtime.compilation import inlined, part

__all__ = [
    "BLOCK",
    "LANES",
    "PADDING",
    "collect",
    "fill",
    "gather_near",
    "keep_below",
    "pad",
    "short_top",
    "support",
    "wide_tops",
]

LANES = 32  # a row's maxima come from this many interleaved parts of it
BLOCK = 64  # entries that are compared at once
PADDING = 16  # candidates are filled up to a multiple of this, so that no loop has a scalar rest


# --- maxima ---------------------------------------------------------------------------------------


@inlined
def short_top(bits):
    """The largest value of a row, and whether NaN or +inf are in it; ``bits`` are its integers."""
    high = ordered(bits[0])
    low = high
    for i in range(1, bits.shape[0]):
        key = ordered(bits[i])
        high = key if key > high else high
        low = key if key < low else low
    top, bottom = as_float(ordered(high)), as_float(ordered(low))
    return top, not top < np.inf or bottom != bottom


@intrinsic
def wide_tops(_, bits, lanes):
    """`short_top` of a row of at least LANES entries, and the maxima of LANES parts of it.

    Entry i belongs to part ``i % LANES``, except that the last ``size % LANES`` entries belong to
    none.
    """
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
            return ordered_lanes(builder, entries)

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
            ordered_lanes(builder, parts), ir.VectorType(context.get_value_type(real), LANES)
        )
        doubles = ir.VectorType(ir.DoubleType(), LANES)
        if width == 32:
            maxima = builder.fpext(maxima, doubles)
        out = context.make_array(lanes)(context, builder, arguments[1])
        builder.store(maxima, builder.bitcast(out.data, doubles.as_pointer())).align = 8
        top = builder.bitcast(ordered_lanes(builder, top), context.get_value_type(real))
        return context.make_tuple(builder, signature.return_type, (top, spoiled))

    return types.Tuple((real, types.boolean))(bits, lanes), codegen


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


@part(fastmath={"contract"})  # reassociation could compare other differences than it stores
def collect(row, top, reach, distance, index):
    """Gather ``top - v`` and the position of every entry v with ``top - v < reach``.

    A block is compared at once with a bound that is loose by more than any rounding; the few entries
    that pass it are then compared exactly. The row has at least BLOCK entries.
    """
    size = row.shape[0]
    bound = top - reach
    bound = row.dtype.type(bound - 1e-6 * abs(bound) - 1e-30)
    count = np.int64(0)
    for start in range(0, size, BLOCK):
        first = min(start, size - BLOCK)  # the last block overlaps the one before it
        found = hits(row, first, bound) & (np.int64(-1) << (start - first))
        while found:
            i = first + lowest_bit(found)
            found &= found - 1
            below = top - np.float64(row[i])
            distance[count] = below
            index[count] = i
            count += below < reach
    return count


@part(fastmath={"contract"})
def gather_near(row, top, reach, distance, index):
    """`collect` for a row of any size, entry by entry."""
    count = np.int64(0)
    for i in range(row.shape[0]):
        below = top - np.float64(row[i])
        distance[count] = below
        index[count] = i
        count += below < reach
    return count


@part
def support(weights, index):
    """The positions of the positive weights; returns how many there are."""
    size = weights.shape[0]
    zero = weights.dtype.type(0.0)
    count = np.int64(0)
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


@inlined
def fill(row, value):
    """Set every entry (quicker to compile than ``row[:] = value``)."""
    for i in range(row.shape[0]):
        row[i] = value


@inlined
def pad(x, count):
    """Fill up with infinities; return the padded count."""
    for j in range(PADDING):
        x[count + j] = np.inf
    return -(-count // PADDING) * PADDING


@inlined
def keep_below(x, index, count, bound):
    """Drop the candidates at or beyond ``bound``, in place; return how many stay."""
    kept = np.int64(0)
    for j in range(count):
        value = x[j]
        x[kept] = value
        index[kept] = index[j]
        kept += value < bound
    return kept
