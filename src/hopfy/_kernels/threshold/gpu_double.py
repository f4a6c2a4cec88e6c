# mypy: ignore-errors
"""Powers in float64 for the last Newton steps of the Triton kernels above alpha = 2.

They use additions, products and quotients only: no function of a vendor's library is called.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["exp2_double", "log2_double"]


@triton.jit
def log2_double(x):
    """log2 of normal positive float64 numbers."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    mantissa = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    f = (mantissa - 1.0) / (mantissa + 1.0)
    q = f * f
    series = tl.zeros_like(f)
    for n in tl.static_range(10):
        series = series * q + 1.0 / (19 - 2 * n)
    return exponent.to(tl.float64) + 2.8853900817779268 * f * series


@triton.jit
def exp2_double(y):
    """2 ** y for y <= 0."""
    y = tl.maximum(y, -1000.0)
    whole = tl.floor(y + 0.5)
    t = (y - whole) * 0.6931471805599453
    series = tl.zeros_like(t) + 1.0
    for n in tl.static_range(13):
        series = 1.0 + t * series * (1.0 / (13 - n))
    return series * ((whole.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
