# mypy: ignore-errors
"""Sums of rows that stay in vector registers while they grow: what a convolution is made of."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopfy._runtime.compilation import part

__all__ = ["LANES", "SPARE", "add_rows", "end_list", "sum_one", "sum_three"]

LANES = 8  # entries of a vector
_MOST = 13  # vectors that fit in sixteen registers beside what is added to them
_CHAINS = 4  # independent sums that hide how long one addition takes
SPARE = _CHAINS  # places at the end of a list
_TOGETHER = ("contract",)  # a product and a sum in one instruction


# --- weighted sums of rows ------------------------------------------------------------------------


@part
def add_rows(total, at, length, table, shift, places, values, begin, count):
    """``total[at:] += value * table[place + shift:]``, ``length`` entries, for the places and values
    of a list of ``count`` from ``begin`` on.

    ``length`` is a multiple of LANES, and the list has been ended by `end_list`.
    """
    done = 0
    while done + _MOST * LANES <= length:
        _add_most(total, at + done, table, shift + done, places, values, begin, count)
        done += _MOST * LANES
    while done + 4 * LANES <= length:
        _add_four(total, at + done, table, shift + done, places, values, begin, count)
        done += 4 * LANES
    while done < length:
        _add_one(total, at + done, table, shift + done, places, values, begin, count)
        done += LANES


@part
def end_list(places, values, count):
    """Write a few entries of value zero behind the end of a list."""
    for spare in range(count, count + SPARE):
        places[spare], values[spare] = 0, 0


def _adder(vectors, chains=1):
    """`add_rows` for so many vectors at once; with chains, some entries of the list at once."""

    @intrinsic
    def add(_, total, at, table, shift, places, values, begin, count):
        def codegen(context, builder, signature, arguments):
            one = _Vectors(context, builder)
            _, at_, _, shift_, _, _, begin_, count_ = arguments
            out, _, rows, _, place_of, value_of, *_ = one.data(signature, arguments)
            targets = [one.pointer(out, one.plus(at_, LANES * v)) for v in range(vectors)]
            totals = [[one.variable(one.load(target)) for target in targets]]
            totals += [[one.variable(one.zero) for _ in targets] for _ in range(chains - 1)]
            source = builder.gep(rows, [shift_])
            with cgutils.for_range_slice(
                builder, begin_, builder.add(begin_, count_), one.integer(chains), count_.type
            ) as (first, _):
                for chain, own in enumerate(totals):
                    entry = one.plus(first, chain)
                    place = builder.load(builder.gep(place_of, [entry]))
                    value = one.everywhere(builder.load(builder.gep(value_of, [entry])))
                    for v, total in enumerate(own):
                        row = one.load(one.pointer(source, one.plus(place, LANES * v)))
                        one.add_product(total, row, value)
            one.store_sums(totals, targets)
            return context.get_dummy_value()

        index = types.intp
        return types.void(total, index, table, index, places, values, index, index), codegen

    return add


# --- windows of a convolution ---------------------------------------------------------------------


def _summer(vectors, chains=1):
    """``totals[w, at:] += patch_w @ weights[:, lane:]`` for the four patches of a window.

    So many vectors for each of the four stay in registers. A patch is ``len(weights) // stretch``
    stretches of the image, a line apart; the four begin at ``corner``, a step and a line from it.
    With two chains the halves of a stretch are summed side by side.
    """

    @intrinsic
    def sums(_, totals, at, weights, lane, image, corner, step, line, stretch):
        def codegen(context, builder, signature, arguments):
            one = _Vectors(context, builder)
            out, _, table, _, pixels, *_ = one.data(signature, arguments)
            _, at_, weights_, lane_, _, corner_, step_, line_, stretch_ = arguments
            shape = context.make_array(weights)(context, builder, weights_).shape
            depth, width = builder.extract_value(shape, 0), builder.extract_value(shape, 1)
            table = builder.gep(table, [lane_])
            each = [LANES * v for v in range(vectors)]
            firsts = [builder.add(at_, builder.mul(one.integer(w), width)) for w in range(4)]
            targets = [one.pointer(out, one.plus(own, lane)) for own in firsts for lane in each]
            sums = [[one.variable(one.load(target)) for target in targets]]
            sums += [[one.variable(one.zero) for _ in targets] for _ in range(chains - 1)]
            below = builder.add(corner_, line_)
            corners = [corner_, builder.add(corner_, step_), below, builder.add(below, step_)]

            def add(starts, row, entry, chain):
                at = builder.mul(builder.add(row, entry), width)
                loaded = [one.load(one.pointer(table, one.plus(at, lane))) for lane in each]
                for w, start in enumerate(starts):
                    pixel = one.everywhere(builder.load(builder.gep(start, [entry])))
                    for v, weight in enumerate(loaded):
                        one.add_product(sums[chain][vectors * w + v], weight, pixel)

            half = builder.sdiv(stretch_, one.integer(chains))
            done = builder.mul(half, one.integer(chains))
            rows = builder.sdiv(depth, stretch_)
            with cgutils.for_range(builder, rows, intp=rows.type) as outer:
                down = builder.mul(outer.index, line_)
                starts = [builder.gep(pixels, [builder.add(own, down)]) for own in corners]
                row = builder.mul(outer.index, stretch_)
                with cgutils.for_range(builder, half, intp=rows.type) as inner:
                    add(starts, row, inner.index, 0)
                    if chains == 2:
                        add(starts, row, builder.add(inner.index, half), 1)
                with builder.if_then(builder.icmp_signed("<", done, stretch_)):
                    add(starts, row, done, 0)
            one.store_sums(sums, targets)
            return context.get_dummy_value()

        n = types.intp
        return types.void(totals, n, weights, n, image, n, n, n, n), codegen

    return sums


# --- instructions ---------------------------------------------------------------------------------


class _Vectors:
    """Writes instructions on vectors of LANES floats."""

    def __init__(self, context, builder):
        self.context, self.builder = context, builder
        self.type = ir.VectorType(ir.FloatType(), LANES)
        self.zero = ir.Constant(self.type, [0.0] * LANES)

    def data(self, signature, arguments):
        """Where each array's entries begin; None for numbers."""
        return [
            self.context.make_array(kind)(self.context, self.builder, argument).data
            if isinstance(kind, types.Array)
            else None
            for kind, argument in zip(signature.args, arguments, strict=True)
        ]

    def integer(self, value):
        return ir.Constant(self.context.get_value_type(types.intp), value)

    def plus(self, index, value):
        return self.builder.add(index, self.integer(value))

    def pointer(self, data, index):
        return self.builder.bitcast(self.builder.gep(data, [index]), self.type.as_pointer())

    def load(self, pointer):
        loaded = self.builder.load(pointer)
        loaded.align = 4  # rows begin anywhere
        return loaded

    def variable(self, value):
        return cgutils.alloca_once_value(self.builder, value)

    def everywhere(self, number):
        undefined = ir.Constant(self.type, ir.Undefined)
        vector = self.builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(vector, undefined, zeros)

    def add_product(self, variable, a, b):
        product = self.builder.fmul(a, b, flags=_TOGETHER)
        total = self.builder.fadd(self.builder.load(variable), product, flags=_TOGETHER)
        self.builder.store(total, variable)

    def store_sums(self, chains, targets):
        """The sum of all chains, to where the first one came from."""
        for target, *totals in zip(targets, *chains, strict=True):
            result = self.builder.load(totals[0])
            for total in totals[1:]:
                result = self.builder.fadd(result, self.builder.load(total))
            self.builder.store(result, target).align = 4


_add_most, _add_four, _add_one = _adder(_MOST), _adder(4), _adder(1, _CHAINS)
sum_one, sum_three = _summer(1, chains=2), _summer(3)
