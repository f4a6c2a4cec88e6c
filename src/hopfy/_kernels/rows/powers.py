# mypy: ignore-errors
"""Powers, exponentials and logarithms in plain arithmetic.

Loops over such code become vector instructions, which calls into a mathematics library prevent.
Sums must not be reassociated here: the tricks with 2^52 rely on rounding.
"""

from __future__ import annotations

import math

from hopfy._kernels.rows.bits import as_bits, as_float
from hopfy._runtime.compilation import inlined, part

__all__ = ["exponentials", "powers_of", "rest_powers"]

_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # ln 2 in two parts
_ODD = tuple(1.0 / (2 * n + 1) for n in range(12))
_FACTORIALS = tuple(1.0 / math.factorial(n) for n in range(14))
_SHIFT = 1.5 * 2.0**52  # adding it rounds a small number to an integer, held in the low bits


@inlined
def log_of_rest(z):
    """``log(1 - z)`` for 0 <= z < 1, accurate for tiny z too."""
    exponent, mantissa = _split(1.0 - z)
    near = z < 0.2928932188134524  # then 1 - z has lost digits that z still has
    return _log_near_one(0.0 if near else exponent, -z if near else mantissa - 1.0)


@inlined
def log_of(x):
    """``log(x)`` for positive x (numbers too small to be normal count as the smallest normal)."""
    exponent, mantissa = _split(x if x > 2.2250738585072014e-308 else 2.2250738585072014e-308)
    return _log_near_one(exponent, mantissa - 1.0)


@inlined
def _split(x):
    """Write x as ``2^exponent mantissa`` with the mantissa between sqrt(1/2) and sqrt(2)."""
    bits = as_bits(x)
    exponent = as_float((bits >> 52) | 0x4330000000000000) - (2.0**52 + 1022.0)
    mantissa = as_float((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000)  # in [1/2, 1)
    small = mantissa < 0.7071067811865476
    return (exponent - 1.0 if small else exponent), (mantissa + mantissa if small else mantissa)


@inlined
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


@inlined
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


@part(fastmath={"contract"})
def rest_powers(d, count, scale, exponent, out):
    """``out = (1 - d / scale)^exponent``, and 0 where d >= scale; d is padded."""
    for j in range(-(-count // 8) * 8):
        z = d[j] / scale
        inside = z < 1.0
        power = exp_of(exponent * log_of_rest(z if inside else 0.0))
        out[j] = power if inside else 0.0


@part(fastmath={"contract"})
def powers_of(x, count, exponent, out):
    """``out = x^exponent`` for positive x, and at most e^700; x is padded."""
    for j in range(-(-count // 8) * 8):
        out[j] = exp_of(exponent * log_of(x[j]))


@part(fastmath={"contract"})
def exponentials(x, count, out):
    """``out = e^x`` for the first ``count`` entries."""
    for j in range(count):
        out[j] = exp_of(x[j])
