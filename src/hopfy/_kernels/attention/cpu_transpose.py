# mypy: ignore-errors
"""Sixteen rows side by side and back again: squares of eight by eight entries, turned in registers."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopfy._kernels.attention.cpu_lanes import LANES, load_vector, store_vector
from hopfy._runtime.compilation import part

__all__ = ["turn", "turn_back"]

_SIDE = 8
_REAL = ir.FloatType()
_VECTOR = ir.VectorType(_REAL, _SIDE)
_CHOICE = ir.VectorType(ir.IntType(32), _SIDE)
_LOW = ir.Constant(_CHOICE, [i // 2 + _SIDE * (i % 2) for i in range(_SIDE)])
_HIGH = ir.Constant(_CHOICE, [i // 2 + _SIDE // 2 + _SIDE * (i % 2) for i in range(_SIDE)])


def _turned(builder, rows):
    """The columns of a square: interleaving the halves of its rows log2(8) times."""
    half = _SIDE // 2
    for _ in range(3):
        found = []
        for upper, lower in zip(rows[:half], rows[half:], strict=True):
            found.append(builder.shuffle_vector(upper, lower, _LOW))
            found.append(builder.shuffle_vector(upper, lower, _HIGH))
        rows = found
    return rows


def _squares(from_rows):
    """A loop over the whole squares of eight rows; returns how many columns they have.

    On the way back every lane is multiplied by its factor.
    """

    @intrinsic
    def run(_, rows, first, n, block, shift, factor):
        kinds = (rows, first, n, block, shift, factor)

        def codegen(context, builder, __, arguments):
            matrix = context.make_array(rows)(context, builder, arguments[0]).data
            lanes = context.make_array(block)(context, builder, arguments[3]).data
            index, count, offset = arguments[1], arguments[2], arguments[4]
            own = context.make_array(factor)(context, builder, arguments[5]).data
            factors = load_vector(builder, builder.gep(own, [offset]), _VECTOR)
            constant = lambda value: ir.Constant(index.type, value)  # noqa: E731
            whole = builder.sdiv(count, constant(_SIDE))
            with cgutils.for_range(builder, whole) as loop:
                column = builder.mul(loop.index, constant(_SIDE))
                pairs = []
                for i in range(_SIDE):
                    row = builder.mul(builder.add(index, constant(i)), count)
                    in_row = builder.gep(matrix, [builder.add(row, column)])
                    lane = builder.mul(builder.add(column, constant(i)), constant(LANES))
                    in_lane = builder.gep(lanes, [builder.add(lane, offset)])
                    pairs.append((in_row, in_lane))
                source, target = (0, 1) if from_rows else (1, 0)
                held = [load_vector(builder, pair[source], _VECTOR) for pair in pairs]
                if not from_rows:
                    held = [builder.fmul(value, factors) for value in held]
                for value, pair in zip(_turned(builder, held), pairs, strict=True):
                    store_vector(builder, value, pair[target])
            return builder.mul(whole, constant(_SIDE))

        return types.intp(*kinds), codegen

    return run


_from_rows, _to_rows = _squares(True), _squares(False)


@part(fastmath={"contract"})
def turn(rows, first, count, n, out):
    """``out[16 j + lane] = rows[first + lane, j]``; lanes without a row repeat the first.

    The rows are contiguous, one after the other.
    """
    for half in range(0, LANES, _SIDE):
        begin = 0
        if half + _SIDE <= count:
            begin = _from_rows(rows, np.int64(first + half), np.int64(n), out, np.int64(half), out)
        for lane in range(half, half + _SIDE):
            row = rows[first + (lane if lane < count else 0)]
            for j in range(begin, n):
                out[LANES * j + lane] = row[j]


@part(fastmath={"contract"})
def turn_back(block, factor, first, count, n, rows):
    """The inverse of `turn`, every lane times its factor."""
    for half in range(0, LANES, _SIDE):
        begin = 0
        if half + _SIDE <= count:
            place = np.int64(first + half)
            begin = _to_rows(rows, place, np.int64(n), block, np.int64(half), factor)
        for lane in range(half, min(count, half + _SIDE)):
            row, own = rows[first + lane], factor[lane]
            for j in range(begin, n):
                row[j] = block[LANES * j + lane] * own
