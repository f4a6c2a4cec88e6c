# mypy: ignore-errors
"""Launching Triton kernels over rows: the shape of a program, a map's parameter, the tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "Shape",
    "launch",
    "load_parameter",
    "parameter_of",
    "shape_for",
    "shapes",
    "source_of",
    "write",
]

# A program takes R rows in tiles of B columns. Longer rows than the last tile are read again in every
# pass, from the cache. Kernels that hold much per entry (many regimes, float64) take smaller tiles.
_TILES = ((32, 32, 8), (8, 128, 8), (2, 512, 8), (1, 1_024, 8), (1, 2_048, 16))
_LARGE_TILES = ((1, 4_096, 16), (1, 8_192, 16))


class Shape(NamedTuple):
    """How one program works: R rows in tiles of B columns; ``whole`` if one tile holds a row."""

    R: int
    B: int
    whole: bool
    warps: int


def shapes(heavy: bool = False) -> list[Shape]:
    """Every shape that `shape_for` can choose, from short rows to rows of any length."""
    tiles = _TILES if heavy else _TILES + _LARGE_TILES
    last = (1, 2_048, 16) if heavy else (1, 4_096, 16)
    return [Shape(r, b, True, warps) for r, b, warps in tiles] + [Shape(*last[:2], False, last[2])]


def shape_for(size: int, heavy: bool = False) -> Shape:
    """The shape for rows of this size: a fixed choice, so that no result depends on a timing."""
    available = shapes(heavy)
    return next((shape for shape in available if shape.whole and size <= shape.B), available[-1])


def parameter_of(
    parameter: Tensor, rows: Tensor, change: Callable[[Tensor], Tensor]
) -> tuple[Any, int, bool]:
    """``change(parameter)`` as the kernels take it: a number, or a float32 tensor with its stride.

    Returns what to pass, the stride from row to row, and whether it is a tensor. A number on the
    host is read, which costs nothing; one on the device stays there. ``change`` sees float64.
    """
    parameter = parameter.detach()
    if parameter.ndim == 0 and parameter.device.type == "cpu":
        return change(parameter.double()).item(), 0, False
    values = change(parameter.double()).to(rows.device, torch.float32)
    if values.ndim == 0:
        return values.reshape(1), 0, True
    return values.expand(*rows.shape[:-1], 1).reshape(-1).contiguous(), 1, True


def launch(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    *arguments: Any,
    heavy: bool = False,
    **constants: Any,
) -> None:
    """Run a row kernel over all rows of contiguous tensors of one shape."""
    rows = tensors[0]
    size = rows.shape[-1]
    count = rows.numel() // size
    shape = shape_for(size, heavy)
    with torch.cuda.device_of(rows):
        kernel[(triton.cdiv(count, shape.R),)](
            *tensors,
            *arguments,
            count,
            size,
            **constants,
            R=shape.R,
            B=shape.B,
            WHOLE=shape.whole,
            num_warps=shape.warps,
        )


@triton.jit
def source_of(pointer, count, size, R: tl.constexpr, B: tl.constexpr):
    """What `streamed` reads for the R rows of this program; -1 stands for rows past the last."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    first = tl.where(row < count, row * size, -1)[:, None]
    return pointer, first, size, tl.arange(0, B)[None, :]


@triton.jit
def load_parameter(parameter, stride, count, R: tl.constexpr, PER_ROW: tl.constexpr):
    """The parameter of each of the R rows of this program."""
    if PER_ROW:
        row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
        return tl.load(parameter + row * stride, mask=row < count, other=1.0)
    else:
        return tl.full((R,), 1.0, tl.float32) * parameter


@triton.jit
def write(pointer, source, j, values):
    """Store tile j beside the entries that `streamed` reads from ``source``."""
    _, first, size, columns = source
    at = j * columns.shape[1] + columns
    inside = (first >= 0) & (at < size)
    tl.store(pointer + first + at, values.to(pointer.dtype.element_ty), mask=inside)
