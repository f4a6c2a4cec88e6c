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

__all__ = [
    "LANES",
    "LARGEST",
    "bracketed_step",
    "capped_through",
    "caps",
    "centers",
    "distances",
    "first_step",
    "largest",
    "load_vector",
    "moments",
    "newton_step",
    "norm_slopes",
    "norm_through",
    "rises",
    "slopes",
    "spans",
    "steepest",
    "steps",
    "store_vector",
    "sums",
    "through",
    "tops",
    "weights",
]

LANES = 16
_REAL, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTS = ir.VectorType(_REAL, LANES), ir.VectorType(_INT, LANES)
_LARGEST = 3.4028234663852886e38
_ROUNDED = 2.0**-22  # a weight this close to 0 or 1 is 0 or 1
_CLOSE = 1e-6  # sums this close to their target are solved
LARGEST = 8  # entries that `largest` keeps
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
        """``x^exponent`` for positive x, as `hopfy._kernels.rows.powers_float32.power32`."""
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


def load_vector(builder, pointer, kind=_VECTOR):
    """The float32 entries from a place on, which need not be aligned to the vector."""
    found = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    found.align = 4
    return found


def store_vector(builder, value, pointer):
    """The inverse of `load_vector`."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 4


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
            lanes = load_vector(builder, data[3]), load_vector(builder, data[4])
            sums = [cgutils.alloca_once_value(builder, _all(value)) for value in first]
            count = arguments[2]
            with cgutils.for_range(builder, count) as loop:
                place = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
                pointers = [builder.gep(data[i], [place]) for i in (0, 1)]
                entries = [load_vector(builder, pointer) for pointer in pointers]
                *found, stored = body(ops, *entries, *lanes, *map(builder.load, sums))
                for place, value in zip(sums, found, strict=True):
                    builder.store(value, place)
                if into is not None:
                    store_vector(builder, stored, pointers[into])
            for place, target in zip(sums, data[5:], strict=True):
                store_vector(builder, builder.load(place), target)
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
    return o.add(u, found), o.add(v, o.mul(found, found)), found


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


def _steps(mode):
    """Sums of ``(p - x)_+^q`` and of its derivative, q < 1, or of (p - x) cut to [0, 1]."""

    def body(o, x, y, s, power, u, v):
        rest, positive, safe = _rest(o, x, s)
        if mode == 2:
            value = o.at_most(positive, _all(1.0))
            slope = o.where("<", rest, _all(1.0), _all(1.0), _all(0.0))
        else:
            value = o.sqrt(safe) if mode == 1 else o.power(safe, power)
            slope = o.div(value, safe)
            slope = o.mul(slope, _all(0.5) if mode == 1 else power)
            value = _inside(o, rest, value)
        return o.add(u, value), o.add(v, _inside(o, rest, slope)), None

    return body


def _rises(mode):
    """x = (p - x)_+^q, q < 1, and the sum; or (p - x) cut to [0, 1], rounded at both ends."""

    def body(o, x, y, s, power, u, v):
        rest, positive, safe = _rest(o, x, s)
        if mode == 2:
            weight = o.where(">", rest, _all(1 - _ROUNDED), _all(1.0), positive)
            weight = o.where("<", rest, _all(_ROUNDED), _all(0.0), weight)
        else:
            weight = o.sqrt(safe) if mode == 1 else o.power(safe, power)
            weight = _inside(o, rest, weight)
        return o.add(u, weight), v, weight

    return body


def _spans(o, x, y, p, q, u, v):
    there = o.where(">", x, _all(-math.inf), _all(1.0), _all(0.0))
    finite = o.where(">", x, _all(-math.inf), x, u)
    return o.at_most(u, finite), o.add(v, there), None


def _steepest(o, x, y, p, q, u, v):
    better = o.builder.and_(
        o.builder.fcmp_ordered(">", x, _all(0.0)), o.builder.fcmp_ordered("<", x, u)
    )
    return o.builder.select(better, x, u), o.builder.select(better, y, v), None


def _centers(o, x, y, p, q, u, v):
    return u, v, o.sub(y, p)


def _between(o, x, yes):
    inside = o.where("<", x, _all(1.0), yes, _all(0.0))
    return _inside(o, x, inside)


def _caps(o, x, y, p, q, u, v):
    return o.add(u, _between(o, x, y)), o.add(v, _between(o, x, _all(1.0))), None


def _capped_through(o, x, y, mean, scale, u, v):
    return u, v, _between(o, x, o.mul(scale, o.sub(y, mean)))


def _power_of_weight(o, x, power, mode):
    """x^power on the support, 0 elsewhere; mode 1 knows power = 0, mode 2 power = 2."""
    if mode == 1:
        return _inside(o, x, _all(1.0))
    if mode == 2:
        return o.mul(x, x)
    return _inside(o, x, o.power(o.where(">", x, _all(0.0), x, _all(1.0)), power))


def _moments(mode):
    def body(o, x, y, p, power, u, v):
        return (
            o.add(u, _power_of_weight(o, x, power, 2 if mode else 0)),
            o.add(v, o.mul(x, y)),
            None,
        )

    return body


def _norm_slopes(mode):
    def body(o, x, y, mean, power, u, v):
        found = o.mul(_power_of_weight(o, x, power, 1 if mode else 0), o.sub(y, mean))
        return o.add(u, found), v, found

    return body


def _norm_through(o, x, y, total, factor, u, v):
    return u, v, o.mul(factor, o.sub(y, o.mul(x, total)))


# The largest entry of each lane, and how many are NaN.
tops = _pass(_tops, first=(-_LARGEST, 0.0))
# x = (p - x) q, and the sums of x and x^2.
distances = _pass(_distances, into=0)
# With rest = (p - x)_+: sums of rest^q and rest^(q + 1); q is 0 or 1 for modes 1 and 2.
sums = {mode: _pass(_sums(mode)) for mode in (0, 1, 2)}
# x = rest^q, and the sum; q is 1 or 2 for modes 1 and 2.
weights = {mode: _pass(_weights(mode), into=0) for mode in (0, 1, 2)}
# x = x^q where x > 0, and the sums of x and x y; q is 0 or 1/2 for modes 1 and 2.
slopes = {mode: _pass(_slopes(mode), into=0) for mode in (0, 1, 2)}
# y = x q (y - p).
through = _pass(_through, into=1)
# Where the sum is not convex: (p - x)_+^q with q < 1 (modes 0 and, for q = 1/2, 1), or (p - x) cut to
# [0, 1] (mode 2). The sums of values and derivatives, and x = value with its sum.
steps = {mode: _pass(_steps(mode)) for mode in (0, 1, 2)}
rises = {mode: _pass(_rises(mode), into=0) for mode in (0, 1, 2)}
# The smallest finite entry, and how many are finite.
spans = _pass(_spans, first=(_LARGEST, 0.0))
# The smallest positive x, and y beside it.
steepest = _pass(_steepest, first=(_LARGEST, 0.0))
# y = y - p.
centers = _pass(_centers, into=1)
# The sum of y where 0 < x < 1, and how many these are; then y = q (y - p) there, 0 elsewhere.
caps = _pass(_caps)
capped_through = _pass(_capped_through, into=1)
# Normmax (mode 1: alpha = 2): sums of x^q and x y; y = x^q (y - p) and its sum; y = q (y - x p).
moments = {mode: _pass(_moments(mode)) for mode in (0, 1)}
norm_slopes = {mode: _pass(_norm_slopes(mode), into=1) for mode in (0, 1)}
norm_through = _pass(_norm_through, into=1)


@intrinsic
def bracketed_step(_, s, low, high, target, value, slope):
    """One Newton step of each lane for ``value(s) = target``, kept inside ``low .. high``.

    The value rises with s. A step that would leave the bracket goes to its middle, or nowhere if
    the value is close already. Returns whether some lane is not.
    """

    def codegen(context, builder, signature, arguments):
        data = [
            _data(context, builder, *pair) for pair in zip(signature.args, arguments, strict=True)
        ]
        at, lower, upper, wanted, found, rise = (load_vector(builder, pointer) for pointer in data)
        o = _Ops(builder)
        zero = _all(0.0)
        error = o.sub(found, wanted)
        lower = o.where("<", error, zero, at, lower)
        upper = o.where(">", error, zero, at, upper)
        safe = o.where(">", rise, zero, rise, _all(1e-30))
        size = o.at_least(error, o.sub(zero, error))
        close = o.mul(_all(_CLOSE), o.at_least(wanted, _all(1.0)))
        middle = o.add(lower, o.mul(o.sub(upper, lower), _all(0.5)))
        middle = o.where(">", size, close, middle, at)
        moved = o.sub(at, o.div(error, safe))
        moved = o.where(">", moved, lower, moved, middle)
        moved = o.where("<", moved, upper, moved, middle)
        for value, place in ((moved, 0), (lower, 1), (upper, 2)):
            store_vector(builder, value, data[place])
        size = o.where("!=", moved, at, o.sub(size, close), zero)
        return builder.fcmp_ordered(">", _largest_of(builder, size), ir.Constant(_REAL, 0.0))

    return types.boolean(s, low, high, target, value, slope), codegen


def _largest_of(builder, vector):
    largest_lane = builder.module.declare_intrinsic(
        f"llvm.vector.reduce.fmax.v{LANES}f32", (), ir.FunctionType(_REAL, [_VECTOR])
    )
    return builder.call(largest_lane, [vector])


@intrinsic
def largest(_, x, n, out):
    """The eight largest entries of each lane, in falling order, into the block ``out``."""

    def codegen(context, builder, signature, arguments):
        source = _data(context, builder, signature.args[0], arguments[0])
        target = _data(context, builder, signature.args[2], arguments[2])
        o = _Ops(builder)
        best = [cgutils.alloca_once_value(builder, _all(-math.inf)) for _ in range(LARGEST)]
        with cgutils.for_range(builder, arguments[1]) as loop:
            place = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            entry = load_vector(builder, builder.gep(source, [place]))
            for one in best:
                held = builder.load(one)
                builder.store(o.at_least(held, entry), one)
                entry = o.at_most(held, entry)
        for i, one in enumerate(best):
            pointer = builder.gep(target, [ir.Constant(ir.IntType(64), i * LANES)])
            store_vector(builder, builder.load(one), pointer)
        return context.get_dummy_value()

    return types.void(x, n, out), codegen


def _newton_step(smallest):
    """A step for ``total^(1 - power) = 1``: ``s - (total - total^power) / first``, its sign kept or not."""

    @intrinsic
    def step_of(_, s, power, first, total):
        def codegen(context, builder, signature, arguments):
            data = [
                _data(context, builder, *pair)
                for pair in zip(signature.args, arguments, strict=True)
            ]
            root, exponent, slope, mass = (load_vector(builder, pointer) for pointer in data)
            o = _Ops(builder)
            safe = o.where(">", mass, _all(0.0), mass, _all(1.0))
            step = o.div(o.sub(mass, o.power(safe, exponent)), slope)
            step = o.at_least(step, _all(smallest))
            step = o.where(">", slope, _all(0.0), step, _all(0.0))  # a lane that sees no key
            store_vector(builder, o.at_most(o.sub(root, step), _all(1.0)), data[0])
            return _largest_of(builder, o.at_least(step, o.sub(_all(0.0), step)))

        return types.float32(s, power, first, total), codegen

    return step_of


# Replace s by its Newton step, at most 1, and return the largest step of a lane: from anywhere, or from
# the right of the root, where a step to the right is an error of rounding and left out.
first_step, newton_step = _newton_step(-1.0), _newton_step(0.0)
