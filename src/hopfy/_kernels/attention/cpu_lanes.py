# mypy: ignore-errors
"""Passes over a block of short rows, sixteen rows side by side in vectors of float32.

A block holds entry j of all rows at ``16 j .. 16 j + 16``. Every pass is written with vectors, since
a compiler that sees loops over sixteen lanes leaves their sums in memory. A pass is called as
``name(x, y, n, p, q, u, v)``: blocks x and y of n entries, numbers p and q of each lane that it
reads, and u and v that it writes.
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "distances", "newton_step", "slopes", "sums", "through", "tops", "weights"]

LANES = 16
_REAL, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTS = ir.VectorType(_REAL, LANES), ir.VectorType(_INT, LANES)
_LARGEST = 3.4028234663852886e38
_ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)
_ODD = tuple(2 / math.log(2) / (2 * n + 1) for n in range(5))
_EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(8))


def _all(value):
    return ir.Constant(_VECTOR, [value] * LANES)


class _Ops:
    """Arithmetic of vectors; products and sums may be contracted."""

    def __init__(self, builder):
        self.builder = builder

    def add(self, a, b):
        return self.builder.fadd(a, b, flags=("contract",))

    def sub(self, a, b):
        return self.builder.fsub(a, b, flags=("contract",))

    def mul(self, a, b):
        return self.builder.fmul(a, b, flags=("contract",))

    def div(self, a, b):
        return self.builder.fdiv(a, b)

    def where(self, sign, a, b, yes, no):
        return self.builder.select(self.builder.fcmp_ordered(sign, a, b), yes, no)

    def at_least(self, a, b):
        return self.where(">", a, b, a, b)

    def at_most(self, a, b):
        return self.where("<", a, b, a, b)

    def sqrt(self, a):
        function = self.builder.module.declare_intrinsic(
            f"llvm.sqrt.v{LANES}f32", (), ir.FunctionType(_VECTOR, [_VECTOR])
        )
        return self.builder.call(function, [a])

    def polynomial(self, x, coefficients):
        total = _all(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = self.add(self.mul(total, x), _all(coefficient))
        return total

    def power(self, x, exponent):
        """``x^exponent`` for positive x, as `hopfy._kernels.rows.powers32.power32`."""
        b = self.builder
        root = ir.Constant(_INTS, [_ROOT_HALF] * LANES)
        bits = b.sub(b.bitcast(x, _INTS), root)
        whole = b.sitofp(b.ashr(bits, ir.Constant(_INTS, [23] * LANES)), _VECTOR)
        fraction = b.and_(bits, ir.Constant(_INTS, [0x7FFFFF] * LANES))
        f = self.sub(b.bitcast(b.add(fraction, root), _VECTOR), _all(1.0))
        s = self.div(f, self.add(f, _all(2.0)))
        log = self.mul(s, self.polynomial(self.mul(s, s), _ODD))
        y = self.mul(exponent, self.add(whole, log))
        y = self.at_most(self.at_least(y, _all(-126.0)), _all(126.0))
        shift = _all(1.5 * 2**23)  # adding it rounds to an integer
        k = b.fsub(b.fadd(y, shift), shift)
        series = self.polynomial(b.fsub(y, k), _EXP2)
        exponent_bits = b.add(b.fptosi(k, _INTS), ir.Constant(_INTS, [127] * LANES))
        scale = b.shl(exponent_bits, ir.Constant(_INTS, [23] * LANES))
        return self.mul(series, b.bitcast(scale, _VECTOR))


def _data(context, builder, kind, value):
    return context.make_array(kind)(context, builder, value).data


def _load(builder, pointer):
    found = builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()))
    found.align = 4
    return found


def _store(builder, value, pointer):
    builder.store(value, builder.bitcast(pointer, _VECTOR.as_pointer())).align = 4


def _pass(body, first=(0.0, 0.0), into=None):
    """A pass: ``body(ops, x, y, p, q, u, v)`` returns the new u and v and what is stored in ``into``."""

    @intrinsic
    def run(_, x, y, n, p, q, u, v):
        kinds = (x, y, n, p, q, u, v)

        def codegen(context, builder, __, arguments):
            data = [
                None if i == 2 else _data(context, builder, kinds[i], argument)
                for i, argument in enumerate(arguments)
            ]
            ops = _Ops(builder)
            lanes = _load(builder, data[3]), _load(builder, data[4])
            sums = [cgutils.alloca_once_value(builder, _all(value)) for value in first]
            count = arguments[2]
            with cgutils.for_range(builder, count) as loop:
                place = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
                pointers = [builder.gep(data[i], [place]) for i in (0, 1)]
                entries = [_load(builder, pointer) for pointer in pointers]
                *found, stored = body(ops, *entries, *lanes, *map(builder.load, sums))
                for place, value in zip(sums, found, strict=True):
                    builder.store(value, place)
                if into is not None:
                    _store(builder, stored, pointers[into])
            for place, target in zip(sums, data[5:], strict=True):
                _store(builder, builder.load(place), target)
            return context.get_dummy_value()

        return types.void(*kinds), codegen

    return run


def _rest(o, x, s):
    """s - x where that is positive, else 0, and what stands for it in powers: 1."""
    rest = o.sub(s, x)
    return rest, o.at_least(rest, _all(0.0)), o.where(">", rest, _all(0.0), rest, _all(1.0))


def _inside(o, rest, value):
    return o.where(">", rest, _all(0.0), value, _all(0.0))


def _tops(o, x, y, p, q, u, v):
    spoiled = o.builder.select(o.builder.fcmp_unordered("uno", x, x), _all(1.0), _all(0.0))
    return o.at_least(x, u), o.add(v, spoiled), None


def _distances(o, x, y, p, q, u, v):
    found = o.mul(o.sub(p, x), q)
    return o.add(u, found), v, found


def _sums(mode):
    def body(o, x, y, s, power, u, v):
        rest, positive, safe = _rest(o, x, s)
        if mode == 1:
            first = _inside(o, rest, _all(1.0))
        elif mode == 2:
            first = positive
        else:
            first = _inside(o, rest, o.power(safe, power))
        return o.add(u, first), o.add(v, o.mul(first, positive)), None

    return body


def _weights(mode):
    def body(o, x, y, s, power, u, v):
        rest, positive, safe = _rest(o, x, s)
        if mode == 1:
            weight = positive
        elif mode == 2:
            weight = o.mul(positive, positive)
        else:
            weight = _inside(o, rest, o.power(safe, power))
        return o.add(u, weight), v, weight

    return body


def _slopes(mode):
    def body(o, x, y, p, power, u, v):
        safe = o.where(">", x, _all(0.0), x, _all(1.0))
        slope = _all(1.0) if mode == 1 else o.sqrt(safe) if mode == 2 else o.power(safe, power)
        slope = _inside(o, x, slope)
        return o.add(u, slope), o.add(v, o.mul(slope, y)), slope

    return body


def _through(o, x, y, mean, scale, u, v):
    return u, v, o.mul(o.mul(x, scale), o.sub(y, mean))


# The largest entry of each lane, and how many are NaN.
tops = _pass(_tops, first=(-_LARGEST, 0.0))
# x = (p - x) q, and the sum.
distances = _pass(_distances, into=0)
# With rest = (p - x)_+: sums of rest^q and rest^(q + 1); q is 0 or 1 for modes 1 and 2.
sums = {mode: _pass(_sums(mode)) for mode in (0, 1, 2)}
# x = rest^q, and the sum; q is 1 or 2 for modes 1 and 2.
weights = {mode: _pass(_weights(mode), into=0) for mode in (0, 1, 2)}
# x = x^q where x > 0, and the sums of x and x y; q is 0 or 1/2 for modes 1 and 2.
slopes = {mode: _pass(_slopes(mode), into=0) for mode in (0, 1, 2)}
# y = x q (y - p).
through = _pass(_through, into=1)


@intrinsic
def newton_step(_, s, power, first, total):
    """Replace s by ``s - (total - total^power) / first`` where that is less; the largest step."""

    def codegen(context, builder, signature, arguments):
        data = [
            _data(context, builder, *pair) for pair in zip(signature.args, arguments, strict=True)
        ]
        root, exponent, slope, mass = (_load(builder, pointer) for pointer in data)
        o = _Ops(builder)
        safe = o.where(">", mass, _all(0.0), mass, _all(1.0))
        step = o.div(o.sub(mass, o.power(safe, exponent)), slope)
        step = o.at_least(step, _all(0.0))  # NaN, where a lane sees no key, gives 0, too
        _store(builder, o.sub(root, step), data[0])
        largest = builder.module.declare_intrinsic(
            f"llvm.vector.reduce.fmax.v{LANES}f32", (), ir.FunctionType(_REAL, [_VECTOR])
        )
        return builder.call(largest, [step])

    return types.float32(s, power, first, total), codegen
