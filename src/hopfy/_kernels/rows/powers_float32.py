# mypy: ignore-errors
"""Powers in float32, eight at a time: their relative error is about ``1e-7 (1 + |log2 x^exponent|)``.

As in `hopfy._kernels.rows.powers`, sums must not be reassociated here.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hopfy._runtime.compilation import inlined, part

__all__ = ["power32", "powers_of32", "rest_powers32"]

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_ODD = tuple(np.float32(2 / math.log(2) / (2 * n + 1)) for n in range(5))
_EXP2 = tuple(np.float32(math.log(2) ** n / math.factorial(n)) for n in range(8))
_SHIFT = np.float32(1.5 * 2**23)  # adding it rounds a small number to an integer
_LOWEST, _HIGHEST = np.float32(-126), np.float32(126)
_SMALLEST = np.float32(2.0**-126)
_ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)


@intrinsic
def _split(_, x):
    """Write a positive float32 as ``2^exponent mantissa``, the mantissa in [sqrt(1/2), sqrt(2))."""

    def codegen(context, builder, signature, arguments):
        integer = ir.IntType(32)
        root = ir.Constant(integer, _ROOT_HALF)
        real = context.get_value_type(types.float32)
        bits = builder.sub(builder.bitcast(arguments[0], integer), root)
        exponent = builder.sitofp(builder.ashr(bits, ir.Constant(integer, 23)), real)
        fraction = builder.and_(bits, ir.Constant(integer, 0x7FFFFF))
        mantissa = builder.bitcast(builder.add(fraction, root), real)
        return context.make_tuple(builder, signature.return_type, (exponent, mantissa))

    return types.UniTuple(types.float32, 2)(types.float32), codegen


@intrinsic
def _power_of_two(_, k):
    """``2^k`` for an integer k from -126 to 127, held as a float32."""

    def codegen(context, builder, __, arguments):
        integer = ir.IntType(32)
        whole = builder.fptosi(arguments[0], integer)
        bits = builder.shl(builder.add(whole, ir.Constant(integer, 127)), ir.Constant(integer, 23))
        return builder.bitcast(bits, context.get_value_type(types.float32))

    return types.float32(types.float32), codegen


@inlined
def power32(x, exponent):
    """``x^exponent`` for positive x; results outside 2^-126 .. 2^126 are moved to the limits."""
    e, m = _split(x)
    f = m - _ONE
    s = f / (_TWO + f)
    w = s * s
    log = s * (_ODD[0] + w * (_ODD[1] + w * (_ODD[2] + w * (_ODD[3] + w * _ODD[4]))))
    y = exponent * (e + log)
    y = y if y > _LOWEST else _LOWEST
    y = y if y < _HIGHEST else _HIGHEST
    k = (y + _SHIFT) - _SHIFT
    r = y - k
    series = _EXP2[7]
    series = series * r + _EXP2[6]
    series = series * r + _EXP2[5]
    series = series * r + _EXP2[4]
    series = series * r + _EXP2[3]
    series = series * r + _EXP2[2]
    series = series * r + _EXP2[1]
    series = series * r + _EXP2[0]
    return series * _power_of_two(k)


@part(fastmath={"contract"})
def rest_powers32(x, count, s, exponent, out):
    """``out = (s - x)^exponent``, and 0 where x >= s; x is padded."""
    power = np.float32(exponent)
    for j in range(-(-count // 8) * 8):
        rest = np.float32(s - x[j])
        inside = rest > _ZERO
        found = power32(rest if inside else _ONE, power)
        out[j] = found if inside else _ZERO


@part(fastmath={"contract"})
def powers_of32(x, count, exponent, out):
    """``out = x^exponent`` for positive x; x is padded."""
    power = np.float32(exponent)
    for j in range(-(-count // 8) * 8):
        base = np.float32(x[j])
        out[j] = power32(base if base > _SMALLEST else _SMALLEST, power)
