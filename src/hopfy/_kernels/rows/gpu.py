# mypy: ignore-errors
"""What the Triton kernels of the row maps share: shapes of programs, parameters, tiles, both kernels.

A map brings three functions. ``find(tile, source, tiles, ready, top, own, PLAN)`` finds what the weights
of the R rows of a program depend on, a tuple ``state``; ``weigh(scores, top, state, own, PLAN)`` gives
the weights of a tile; ``slopes(y, own, PLAN)`` the slopes g of the backward pass, see `centered`.
``tile(source, j)`` is tile j of the rows, in registers or in memory (see
`hopfy._kernels.threshold.gpu`); ``own`` holds the map's parameters for each row, or for each entry.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.threshold.gpu import INFINITY, held, row_top, streamed
from hopfy._runtime.backends import launching_on

__all__ = [
    "ENTRY",
    "NUMBER",
    "ROW",
    "Parameters",
    "Regimes",
    "Shape",
    "Target",
    "add_to_mean",
    "alpha_of",
    "backward_kernel",
    "centered",
    "forward_kernel",
    "own_tile",
    "parameter_of",
    "shape_for",
    "shapes",
    "solve_by_alpha",
    "solve_rows_of",
    "through_rows_of",
    "write",
]

# A program takes R rows in tiles of B columns. Longer rows than the last tile are read again in every
# pass, from the cache. Kernels that hold much per entry (many regimes, float64) take smaller tiles.
_LIGHT = ((32, 32, 8), (4, 256, 8), (1, 1_024, 8), (1, 4_096, 16)), (1, 4_096, 16)
_HEAVY = ((16, 32, 8), (2, 256, 8), (1, 1_024, 8)), (1, 1_024, 8)


class Shape(NamedTuple):
    """How one program works: R rows in tiles of B columns; ``whole`` if one tile holds a row."""

    R: int
    B: int
    whole: bool
    warps: int


def shapes(heavy: bool = False) -> list[Shape]:
    """Every shape that `shape_for` can choose, from short rows to rows of any length."""
    tiles, (r, b, warps) = _HEAVY if heavy else _LIGHT
    return [Shape(*tile[:2], True, tile[2]) for tile in tiles] + [Shape(r, b, False, warps)]


def shape_for(size: int, heavy: bool = False) -> Shape:
    """The shape for rows of this size: a fixed choice, so that no result depends on a timing."""
    available = shapes(heavy)
    return next((shape for shape in available if shape.whole and size <= shape.B), available[-1])


NUMBER, ROW, ENTRY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


class Parameters(NamedTuple):
    """A map's parameters as the kernels take them.

    ``values`` holds numbers (``kind`` NUMBER), or float32 tensors with one number for each row (ROW) or
    for each entry (ENTRY).
    """

    values: tuple[Any, ...] = ()
    kind: int = 0


def parameter_of(
    parameter: Tensor, rows: Tensor, *changes: Callable[[Tensor], Tensor]
) -> Parameters:
    """What each of the changes makes of the parameter (0-d or (..., 1)), for each of the rows (..., N).

    A number on the host is read, which costs nothing; one on the device stays there. The changes see
    float64.
    """
    found = (change(parameter.detach().double()) for change in changes)
    like = {"dtype": torch.float32, "device": rows.device}
    if _is_number(parameter):
        return Parameters(
            tuple(torch.full(rows.shape[:-1], x.item(), **like) for x in found), ROW.value
        )
    each = (x.to(**like).expand(*rows.shape[:-1], 1).reshape(-1).contiguous() for x in found)
    return Parameters(tuple(each), ROW.value)


def _is_number(parameter: Tensor) -> bool:
    return parameter.ndim == 0 and parameter.device.type == "cpu"


def alpha_of(alpha: Tensor, rows: Tensor) -> Parameters:
    """alpha - 1, of which the kernels of entmax and normmax are functions."""
    return parameter_of(alpha, rows, lambda alpha: alpha - 1)


class Regimes(NamedTuple):
    """What the kernels of alpha are compiled for: their place in ``names``.

    The last of them takes an alpha for each row; it also serves numbers without a kernel of their own.
    """

    names: tuple[str, ...]
    numbers: dict[float, str]  # values of alpha - 1 with a kernel of their own

    def of(self, alpha: Tensor, rows: Tensor) -> tuple[Parameters, int, bool]:
        """alpha - 1 for the rows (..., N), the regime, and whether its kernel holds much per entry."""
        if _is_number(alpha):
            a = alpha.double().item() - 1
            name = self.numbers.get(a) or ("1 to 2" if 0 < a < 1 else "")
            if name in self.names:
                return Parameters((a,)), self.names.index(name), False
        return alpha_of(alpha, rows), len(self.names) - 1, True


class Target(NamedTuple):
    """What a GPU is to the compiler: "cuda", "hip" or "xpu", and the threads of a warp."""

    backend: str
    lanes: int

    @classmethod
    def current(cls) -> Target:
        """The GPU that kernels are launched on; the interpreter has none."""
        if os.environ.get("TRITON_INTERPRET") == "1":
            return cls("interpreter", 32)
        target = triton.runtime.driver.active.get_current_target()
        return cls(target.backend, int(target.warp_size))


class Plan(NamedTuple):
    """What a row kernel is compiled for; no functions, whose sources its cache would not see."""

    REGIME: int
    NORMALIZED: bool  # whether weights are divided by the sum of their row
    OWN: int
    R: int
    B: int
    WHOLE: bool


def solve_rows_of(
    functions: tuple[Any, Any],
    scores: Tensor,
    own: Parameters,
    regime: int = 0,
    *,
    normalized: bool = False,
    heavy: bool = False,
    crowded: bool = False,
) -> Tensor:
    """Weights of the scores (..., N), one launch of `forward_kernel`; ``functions`` find and weigh.

    NVIDIA's compiler would spill a few registers of a ``crowded`` kernel to let more blocks run at a
    time; it obeys a limit.
    """
    scores = scores.contiguous()
    tensors = scores, torch.empty_like(scores)
    plan, shape = (regime, normalized), shape_for(_size(scores), heavy)
    limit = {"maxnreg": 128} if crowded and Target.current().backend == "cuda" else {}
    _launch(forward_kernel, tensors, own, functions, plan, shape, **limit)
    return tensors[1]


def solve_by_alpha(
    functions: tuple[Any, Any], scores: Tensor, alpha: Tensor, regimes: Regimes
) -> Tensor:
    """Weights of a map with a parameter alpha, 0-d or (..., 1), divided by their sum."""
    own, regime, heavy = regimes.of(alpha, scores)
    return solve_rows_of(functions, scores, own, regime, normalized=True, heavy=heavy)


def through_rows_of(
    slopes: Any, weights: Tensor, cotangent: Tensor, own: Parameters, through: Any = None
) -> Tensor:
    """Gradient with respect to the scores, one launch of `backward_kernel`."""
    weights = weights.contiguous()
    tensors = weights, cotangent.contiguous(), torch.empty_like(weights)
    functions = through or centered, slopes
    _launch(backward_kernel, tensors, own, functions, (0, False), shape_for(_size(weights)))
    return tensors[2]


def _size(rows: Tensor) -> int:
    return rows.shape[-1]


def _launch(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    own: Parameters,
    functions: tuple[Any, Any],
    plan: tuple[int, bool],
    shape: Shape,
    **limit: int,
) -> None:
    rows = tensors[0]
    size = rows.shape[-1]
    count = rows.numel() // size
    constants = Plan(*plan, own.kind, shape.R, shape.B, shape.whole)
    with launching_on(rows):
        kernel[(triton.cdiv(count, shape.R),)](
            *tensors,
            own.values,
            count,
            size,
            *functions,
            constants,
            num_warps=shape.warps,
            **limit,
        )


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def forward_kernel(
    scores,
    weights,
    own,
    count,
    size,
    FIND: tl.constexpr,
    WEIGH: tl.constexpr,
    PLAN: tl.constexpr,
):
    rows = _source_of(scores, count, size, PLAN)
    own = _load_parameters(own, count, size, PLAN)
    if PLAN.WHOLE:
        source = (streamed(rows, 0),)
        _write_weights(held, source, 1, rows, weights, own, FIND, WEIGH, PLAN)
    else:
        tiles = tl.cdiv(size, PLAN.B)
        _write_weights(streamed, rows, tiles, rows, weights, own, FIND, WEIGH, PLAN)


@triton.jit
def _write_weights(
    tile: tl.constexpr,
    source,
    tiles,
    rows,
    weights,
    own,
    FIND: tl.constexpr,
    WEIGH: tl.constexpr,
    PLAN: tl.constexpr,
):
    """A row with NaN or +inf is NaN, one without any finite score zero."""
    top, spoiled = row_top(tile, source, tiles, PLAN.R)
    ready = (top > -INFINITY) & ~spoiled
    state = FIND(tile, source, tiles, ready, top, own, PLAN)
    total = tl.zeros_like(top)
    if PLAN.NORMALIZED:
        for j in range(tiles):
            here = own_tile(tile, own, j, PLAN)
            total += tl.sum(WEIGH(tile(source, j), top, state, here, PLAN), 1)
    scale = (1.0 / tl.where(ready, total, 1.0))[:, None]
    for j in range(tiles):
        y = WEIGH(tile(source, j), top, state, own_tile(tile, own, j, PLAN), PLAN)
        if PLAN.NORMALIZED:
            y *= scale
        y = tl.where(ready[:, None], y, 0.0)
        write(weights, rows, j, tl.where(spoiled[:, None], float("nan"), y))


@triton.jit
def backward_kernel(
    weights,
    cotangent,
    gradient,
    own,
    count,
    size,
    THROUGH: tl.constexpr,
    SLOPES: tl.constexpr,
    PLAN: tl.constexpr,
):
    y = _source_of(weights, count, size, PLAN)
    v = _source_of(cotangent, count, size, PLAN)
    own = _load_parameters(own, count, size, PLAN)
    if PLAN.WHOLE:
        here = (streamed(y, 0),)
        THROUGH(SLOPES, held, here, (streamed(v, 0),), 1, y, gradient, own, PLAN)
    else:
        THROUGH(SLOPES, streamed, y, v, tl.cdiv(size, PLAN.B), y, gradient, own, PLAN)


@triton.jit
def _source_of(pointer, count, size, PLAN: tl.constexpr):
    """What `streamed` reads for the R rows of this program; -1 stands for rows past the last."""
    row = tl.program_id(0).to(tl.int64) * PLAN.R + tl.arange(0, PLAN.R)
    first = tl.where(row < count, row * size, -1)[:, None]
    return pointer, first, size, tl.arange(0, PLAN.B)[None, :]


@triton.jit
def _load_parameters(own, count, size, PLAN: tl.constexpr):
    """The parameters of the R rows of this program: numbers (R,), or a source of tiles."""
    if len(own) == 0:
        return (0.0,)
    elif len(own) == 1:
        return (_load_parameter(own[0], count, size, PLAN),)
    else:
        return (
            _load_parameter(own[0], count, size, PLAN),
            _load_parameter(own[1], count, size, PLAN),
        )


@triton.jit
def _load_parameter(parameter, count, size, PLAN: tl.constexpr):
    if PLAN.OWN == ENTRY:
        source = _source_of(parameter, count, size, PLAN)
        if PLAN.WHOLE:
            return (streamed(source, 0),)
        else:
            return source
    elif PLAN.OWN == ROW:
        row = tl.program_id(0).to(tl.int64) * PLAN.R + tl.arange(0, PLAN.R)
        return tl.load(parameter + row, mask=row < count, other=1.0)
    else:
        return tl.full((PLAN.R,), 1.0, tl.float32) * parameter


@triton.jit
def own_tile(tile: tl.constexpr, own, j, PLAN: tl.constexpr):
    """The parameters of tile j: numbers (R,), or one for each entry (R, B)."""
    if PLAN.OWN == ENTRY:
        return (tile(own[0], j),)
    else:
        return own


@triton.jit
def write(pointer, source, j, values):
    """Store tile j beside the entries that `streamed` reads from ``source``."""
    _, first, size, columns = source
    at = j * columns.shape[1] + columns
    inside = (first >= 0) & (at < size)
    tl.store(pointer + first + at, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def centered(
    slopes: tl.constexpr, tile: tl.constexpr, y, v, tiles, rows, gradient, own, PLAN: tl.constexpr
):
    """g (v - mean) with ``g = slopes(tile of y, own, PLAN)``, the mean taken with weights g."""
    zero = tl.zeros((PLAN.R,), tl.float32)
    sums = (zero, zero, zero, zero)
    for j in range(tiles):
        g = slopes(tile(y, j), own_tile(tile, own, j, PLAN), PLAN)
        sums = add_to_mean(g, tile(v, j), sums)
    total, inner, _, origin = sums
    mean = inner / tl.where(total > 0.0, total, 1.0)
    for j in range(tiles):
        here = tile(y, j)
        g = slopes(here, own_tile(tile, own, j, PLAN), PLAN)
        out = tl.where(g > 0.0, g * ((tile(v, j) - origin[:, None]) - mean[:, None]), 0.0)
        write(gradient, rows, j, tl.where(here != here, float("nan"), out))


@triton.jit
def add_to_mean(g, v, sums):
    """Add a tile to the sums of g and g (v - origin), and keep the steepest g and the origin.

    The origin is the cotangent where g is largest so far: one slope may exceed all others by far, and
    centered there the differences keep their digits.
    """
    total, inner, steepest, origin = sums
    here = tl.max(g, 1)
    value = tl.max(tl.where((g == here[:, None]) & (g > 0.0), v, -INFINITY), 1)
    moved = tl.where(here > steepest, value, origin)
    inner += total * (origin - moved)
    inner += tl.sum(tl.where(g > 0.0, g * (v - moved[:, None]), 0.0), 1)
    return total + tl.sum(g, 1), inner, tl.maximum(steepest, here), moved
