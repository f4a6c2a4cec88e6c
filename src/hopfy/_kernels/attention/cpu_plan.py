"""The plan of attention on the CPU: which blocks of scores are computed, and what is kept of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.threads import over_rows

__all__ = [
    "KINDS",
    "Block",
    "Selected",
    "State",
    "Support",
    "finite_scores",
    "generator_of",
    "is_steep",
    "prepare",
    "ranges",
    "rows_of",
    "selects",
]

# Entries of scores in flight: 4 MB of float32 stay in a shared cache.
_BLOCK = 1 << 20
# What compiled loops call the maps.
KINDS = {"entmax": 0, "normmax": 1, "ksubsets": 2}


class Support(NamedTuple):
    """Selected entries of rows, one after the other: row r is ``edges[r]:edges[r + 1]``."""

    weights: Tensor
    columns: Tensor
    edges: Tensor
    kept: Tensor  # 0 or 1 / (1 - dropout) for each weight; empty without dropout


# Weights (rows, keys), of which each row's first few count, how many, and their keys.
Selected = tuple[Tensor, Tensor, Tensor]


class Block(NamedTuple):
    """Groups [g, h), rows [r, s) of each, keys [a, b): more than one group only with all rows."""

    g: int
    h: int
    r: int
    s: int
    a: int
    b: int

    @property
    def rows(self) -> int:
        return (self.h - self.g) * (self.s - self.r)


@dataclass
class State:
    """What the backward pass needs beside the inputs."""

    backend = "cpu"
    kernels: Any
    visible: Visible
    family: Family
    scale: float
    dropout: float
    seed: int
    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    ragged: bool  # some row has masked keys inside its range, or a bias
    blocks: list[Block]
    alpha: np.ndarray[Any, Any]  # the family's parameter as float64: one, or one for each row
    # What was selected, as lists or as all weights; None: computed again.
    supports: list[Support | Tensor | None] = field(default_factory=list)

    @property
    def steep(self) -> bool | None:
        return is_steep(self.family.kind, self.alpha)

    @property
    def selects(self) -> bool:
        return selects(self.family.kind, self.alpha)

    def first(self, block: Block) -> int:
        """The number of the block's first row among all rows."""
        return block.g * self.rows + block.r

    @property
    def restricted(self) -> bool:
        """Whether some row may not see all keys."""
        return self.visible.restricts

    groups: int = 1
    rows: int = 1  # of each group


def is_steep(kind: str, alpha: np.ndarray[Any, Any]) -> bool | None:
    """None for sparsemax and 1.5-entmax: their kernels are compiled without other exponents."""
    if kind != "entmax":
        return True
    if alpha.size == 1:
        return None if alpha[0] in (1.5, 2.0) else True
    return None if np.isin(alpha, (1.5, 2.0)).all() else True


def selects(kind: str, alpha: np.ndarray[Any, Any]) -> bool:
    """Whether rows go from scores to lists of what they select."""
    if kind == "ksubsets":
        return True
    if alpha.size == 1:
        return bool(1 < alpha[0] < math.inf)
    return bool(alpha.min() > 1 and alpha.max() < math.inf)


def finite_scores(queries: Tensor, keys: Tensor, scale: float) -> bool:
    """Whether no score can be NaN or infinite; false for NaN inputs."""
    if not queries.numel() or not keys.numel():
        return False
    largest = torch.linalg.vector_norm(queries, math.inf) * torch.linalg.vector_norm(keys, math.inf)
    bound = float(largest) * queries.shape[2] * max(abs(scale), 1.0)
    return bound < torch.finfo(queries.dtype).max / 4


def prepare(
    kernels: Any,
    queries: Tensor,
    keys: Tensor,
    visible: Visible,
    family: Family,
    scale: float,
    dropout: float,
    seed: int | None = None,
) -> State:
    groups, rows, _ = queries.shape
    low, high, ragged = ranges(kernels, visible, groups * rows, keys.shape[1])
    if seed is None:
        seed = int(torch.randint(1 << 62, ())) if dropout else 0
    blocks = _blocks(groups, rows, keys.shape[1], visible.period)
    if visible.restricts:
        blocks = [_hull(block, low, high, rows) for block in blocks]
    return State(
        kernels,
        visible,
        family,
        scale,
        dropout,
        seed,
        low,
        high,
        ragged,
        blocks,
        rows_of(family.parameter),
        groups=groups,
        rows=rows,
    )


def ranges(
    kernels: Any, visible: Visible, total: int, count: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
    """The first and one past the last key that each row may see, and whether some between are not."""
    period = visible.period
    low, high = np.zeros(total, np.int64), np.full(total, count)
    if not visible.restricts:
        return low, high, False
    ragged = visible.bias is not None
    parts = [(visible.mask, visible.mask_of)]
    if visible.bias is not None:
        # Keys this far down are out of reach, unless a row has no others.
        reach = visible.bias > torch.finfo(visible.bias.dtype).min / 2
        reach |= ~reach.any(-1, keepdim=True)
        parts.append((reach, visible.bias_of))
    for mask, which in parts:
        if mask is None or which is None:
            continue
        flat = mask.reshape(-1, mask.shape[-1]).contiguous().numpy()
        first, last = np.empty(len(flat), np.int64), np.empty(len(flat), np.int64)
        solid = np.empty(len(flat), np.bool_)
        over_rows(kernels.row_ranges, len(flat), flat.size, flat, first, last, solid)
        ragged = ragged or not bool(solid.all())
        shape = (-1, mask.shape[1])
        first, last = (x.reshape(shape)[which.numpy()] for x in (first, last))
        low = np.maximum(low.reshape(-1, period), first).reshape(-1)
        high = np.minimum(high.reshape(-1, period), last).reshape(-1)
    if visible.causal is not None:
        ends = np.clip(np.arange(period) + visible.causal + 1, 0, count)
        high = np.minimum(high.reshape(-1, period), ends).reshape(-1)
    return low, np.maximum(low, high), ragged


def _blocks(groups: int, rows: int, count: int, period: int) -> list[Block]:
    """Whole groups together while they fit into a block, else parts of one group."""
    if rows * count >= _BLOCK or (rows > period and rows * count >= _BLOCK // 4):
        step = max(1, min(_BLOCK // count, 512))
        return [
            Block(g, g + 1, m, min(m + step, segment + period), 0, count)
            for g in range(groups)
            for segment in range(0, rows, period)
            for m in range(segment, segment + period, step)
        ]
    step = max(1, _BLOCK // max(rows * count, 1))
    return [Block(g, min(g + step, groups), 0, rows, 0, count) for g in range(0, groups, step)]


def _hull(block: Block, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], rows: int) -> Block:
    """The block with the keys that its rows can see."""
    here = slice(block.g * rows + block.r, (block.h - 1) * rows + block.s)
    a, b = int(low[here].min()), int(high[here].max())
    return block._replace(a=a, b=max(a, b))


def rows_of(parameter: Tensor) -> np.ndarray[Any, Any]:
    """The parameter as float64: one number, or one for each row."""
    if not parameter.ndim:
        return np.array([parameter.item()], np.float64)
    return parameter.detach().to(torch.float64).reshape(-1).contiguous().numpy()


def generator_of(state: State, number: int) -> torch.Generator | None:
    return torch.Generator().manual_seed(state.seed + number) if state.dropout else None
