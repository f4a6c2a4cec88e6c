# mypy: ignore-errors
"""Floats as integers, and integers as floats, inside compiled code."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["as_bits", "as_float", "ordered", "ordered_lanes"]


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


@intrinsic
def ordered(_, bits):
    """An integer that compares like the float with these bits; applied twice, the bits again.

    Integer maxima use vector instructions where float maxima, because of NaN, do not. In this order
    NaN is above +inf or, with its sign bit set, below -inf.
    """

    def codegen(context, builder, __, arguments):
        return ordered_lanes(builder, arguments[0])

    return bits(bits), codegen


def ordered_lanes(builder, bits):
    """`ordered` for use in an intrinsic: ``bits`` is an LLVM integer, or a vector of them."""
    vector = isinstance(bits.type, ir.VectorType)
    width = (bits.type.element if vector else bits.type).width
    sign, magnitude = width - 1, 2 ** (width - 1) - 1
    if vector:
        sign, magnitude = [sign] * bits.type.count, [magnitude] * bits.type.count
    negative = builder.ashr(bits, ir.Constant(bits.type, sign))
    return builder.xor(bits, builder.and_(negative, ir.Constant(bits.type, magnitude)))
