r"""Inner products of stored floats without any rounding.

Every float is a whole number times a power of two. Two ways to use that, both with ordinary float64
products, which are exact as long as all sums stay below :math:`2^{53}`:

* `lattice`: all patterns are *small* whole numbers times one rational number (zeros and ones, signs
  over the square root of D, quantized vectors). One product per block is then exact for all pairs;
* `exact_products`: any floats, cut into digits of some 20 bits, one product per pair of digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["WHOLE", "Lattice", "exact_products", "fractions_of", "lattice"]

WHOLE = 2.0**53
"""Sums of whole numbers are exact in float64 up to here."""
_DIGITS = 64
_SAMPLE = 64


class Lattice(NamedTuple):
    """Patterns as whole numbers (N, D), float64, times one rational ``scale``."""

    whole: Tensor
    scale: Fraction


def lattice(memories: Tensor, size: int) -> Lattice | None:
    """The patterns as whole numbers, if sums of ``size`` of them times another are exact.

    >>> import torch
    >>> from hopfy.theory._exact import lattice
    >>> lattice(torch.tensor([[0.75, -0.25], [0.0, 0.5]], dtype=torch.float64), 1)
    Lattice(whole=tensor([[ 3., -1.],
            [ 0.,  2.]], dtype=torch.float64), scale=Fraction(1, 4))
    """
    if memories.shape[0] > _SAMPLE and _whole(memories[:_SAMPLE], size) is None:
        return None  # more rows have a smaller common factor
    return _whole(memories, size)


def _whole(memories: Tensor, size: int) -> Lattice | None:
    rows = memories.detach().double().cpu().numpy()
    if not np.isfinite(rows).all():
        return None
    nonzero = rows[rows != 0]
    if nonzero.size == 0:
        return Lattice(torch.from_numpy(rows.copy()), Fraction(1))
    lowest, top = _places(nonzero)
    if top - lowest > 62:
        return None
    numbers = np.ldexp(rows, -lowest).astype(np.int64)
    common = int(np.gcd.reduce(np.abs(numbers), axis=None))
    whole = (numbers // common).astype(np.float64)
    largest = float((whole * whole).sum(-1).max())  # rounded by less than the factor 2 below
    if np.abs(whole).max() * size >= WHOLE or 2 * size * largest >= WHOLE:
        return None
    scale = Fraction(common) * Fraction(2) ** lowest
    return Lattice(torch.from_numpy(whole).to(memories.device), scale)


def exact_products(summands: Tensor, rows: Tensor) -> list[Fraction] | None:
    r""":math:`(\sum_s a_s)^\top x_r` for summands (S, D) and rows (R, D), exactly.

    None where a number is not finite or the exponents are too far apart.

    >>> import torch
    >>> from hopfy.theory._exact import exact_products
    >>> exact_products(torch.tensor([[0.5, 1e-20]]).double(), torch.tensor([[1.0, 0.0]]))
    [Fraction(1, 2)]
    """
    a = summands.detach().double().cpu().numpy()
    x = rows.detach().double().cpu().numpy()
    if not (np.isfinite(a).all() and np.isfinite(x).all()):
        return None
    bits = (53 - (a.size + 1).bit_length()) // 2
    left, right = _digits(a, bits), _digits(x, bits)
    if left is None or right is None:
        return None
    sums = np.zeros((left.places + right.places - 1, x.shape[0]), dtype=np.int64)
    for i, high in enumerate(right.parts()):
        for j, low in enumerate(left.parts()):
            # Fewer than 2**10 of these sums below 2**53 meet in one place.
            sums[i + j] += (high @ low.T).sum(-1).astype(np.int64)
    total = sums[0].astype(object)
    for place in range(1, sums.shape[0]):
        total = total * (1 << bits) + sums[place].astype(object)
    exponent = left.top + right.top - bits * (sums.shape[0] + 1)
    unit = Fraction(2) ** exponent
    return [int(number) * unit for number in total]


class _Digits(NamedTuple):
    """Numbers as ``sum_i digit_i * 2 ** (top - bits * (i + 1))`` over ``places`` digits."""

    numbers: NDArray[np.float64]
    bits: int
    top: int
    places: int

    def parts(self) -> Iterator[NDArray[np.float64]]:
        rest = self.numbers
        for place in range(1, self.places + 1):
            shift = self.bits * place - self.top
            digit = np.trunc(np.ldexp(rest, shift))
            rest = rest - np.ldexp(digit, -shift)
            yield digit


def _digits(numbers: NDArray[np.float64], bits: int) -> _Digits | None:
    nonzero = numbers[numbers != 0]
    if bits < 1:
        return None
    if nonzero.size == 0:
        return _Digits(numbers, bits, 0, 1)
    lowest, top = _places(nonzero)
    count = -(-(top - lowest) // bits)
    return _Digits(numbers, bits, top, count) if count <= _DIGITS else None


def _places(nonzero: NDArray[np.float64]) -> tuple[int, int]:
    """Exponents between which all binary digits of the numbers lie: multiples of 2**low, below 2**top."""
    mantissas, exponents = np.frexp(nonzero)
    digits = np.ldexp(mantissas, 53).astype(np.int64)
    trailing = np.log2((digits & -digits).astype(np.float64)).astype(np.int64)
    return int((exponents - 53 + trailing).min()), int(exponents.max())


def fractions_of(values: Tensor) -> list[Fraction]:
    """The numbers of a flat tensor as rational numbers."""
    return [Fraction(value) for value in values.detach().double().flatten().tolist()]
