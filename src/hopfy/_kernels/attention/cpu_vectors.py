# mypy: ignore-errors
"""Loops over the features of two rows at once, in vectors, with no check of what may overlap.

A loop over some dozens of features, compiled from Python, spends most of its time on such checks.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["add_both", "dot_and_add"]

_WIDTH = 8
_FAST = ("contract", "reassoc")


class _Rows:
    """Rows of one dtype, read and written in pieces of eight entries or of one."""

    def __init__(self, context, builder, kinds, arguments):
        self.builder = builder
        self.data = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(kinds, arguments, strict=True)
        ]
        self.real = context.get_value_type(kinds[0].dtype)
        self.bytes = kinds[0].dtype.bitwidth // 8

    def pieces(self, size, piece):
        """Call ``piece(kind, place)`` for all entries: vectors first, then single ones."""
        builder = self.builder
        width = ir.Constant(size.type, _WIDTH)
        whole = builder.sdiv(size, width)
        with cgutils.for_range(builder, whole) as loop:
            piece(ir.VectorType(self.real, _WIDTH), builder.mul(loop.index, width))
        rest = builder.mul(whole, width)
        with cgutils.for_range(builder, builder.sub(size, rest)) as loop:
            piece(self.real, builder.add(loop.index, rest))

    def _place(self, kind, row, place):
        return self.builder.bitcast(self.builder.gep(self.data[row], [place]), kind.as_pointer())

    def load(self, kind, row, place):
        found = self.builder.load(self._place(kind, row, place))
        found.align = self.bytes
        return found

    def store(self, kind, row, place, value):
        self.builder.store(value, self._place(kind, row, place)).align = self.bytes

    def filled(self, kind, value):
        """The number itself, or a vector of it."""
        if kind is self.real:
            return value
        builder, nothing = self.builder, ir.Constant(kind, ir.Undefined)
        one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), _WIDTH), [0] * _WIDTH)
        return builder.shuffle_vector(one, nothing, lanes)

    def add_product(self, total, a, b):
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=_FAST), flags=_FAST)


@intrinsic
def dot_and_add(_, size, a, b, factor, out):
    """Return ``<a, b>`` and add ``factor a`` to ``out``."""

    def codegen(context, builder, __, arguments):
        rows = _Rows(context, builder, (a, b, out), (arguments[1], arguments[2], arguments[4]))
        vector = ir.VectorType(rows.real, _WIDTH)
        sums = {
            kind: cgutils.alloca_once_value(builder, ir.Constant(kind, value))
            for kind, value in ((vector, [0.0] * _WIDTH), (rows.real, 0.0))
        }

        def piece(kind, place):
            total = sums[kind] if kind is rows.real else sums[vector]
            left = rows.load(kind, 0, place)
            found = rows.add_product(builder.load(total), left, rows.load(kind, 1, place))
            builder.store(found, total)
            more = rows.filled(kind, arguments[3])
            rows.store(kind, 2, place, rows.add_product(rows.load(kind, 2, place), left, more))

        rows.pieces(arguments[0], piece)
        suffix = "f32" if rows.bytes == 4 else "f64"
        reduce = builder.module.declare_intrinsic(
            f"llvm.vector.reduce.fadd.v{_WIDTH}{suffix}",
            (),
            ir.FunctionType(rows.real, [rows.real, vector]),
        )
        operands = [builder.load(sums[rows.real]), builder.load(sums[vector])]
        return builder.call(reduce, operands, fastmath=("reassoc",))

    return a.dtype(types.intp, a, b, a.dtype, out), codegen


@intrinsic
def add_both(_, size, factor, a, in_a, b, in_b):
    """Add ``factor a`` to ``in_a`` and ``factor b`` to ``in_b``."""

    def codegen(context, builder, __, arguments):
        rows = _Rows(context, builder, (a, in_a, b, in_b), arguments[2:])

        def piece(kind, place):
            more = rows.filled(kind, arguments[1])
            for source, target in ((0, 1), (2, 3)):
                found = rows.add_product(
                    rows.load(kind, target, place), rows.load(kind, source, place), more
                )
                rows.store(kind, target, place, found)

        rows.pieces(arguments[0], piece)
        return context.get_dummy_value()

    return types.void(types.intp, a.dtype, a, in_a, b, in_b), codegen
