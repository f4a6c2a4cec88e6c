# mypy: ignore-errors
"""Launching the attention kernels: sizes of blocks, what a kernel is compiled for, its arguments."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from hopfy._kernels.attention.gpu_maps import KINDS
from hopfy._kernels.attention.types import Family, Visible
from hopfy._kernels.entmax import gpu as entmax
from hopfy._kernels.ksubsets import gpu as ksubsets
from hopfy._kernels.normmax import gpu as normmax
from hopfy._kernels.rows.gpu import Parameters, Target

__all__ = ["Arguments", "Blocks", "Plan", "arguments_of", "blocks_for"]

_REGIMES = {"entmax": entmax.REGIMES, "normmax": normmax.REGIMES}


class Blocks(NamedTuple):
    """Queries and keys of a block, the padded size of keys and values, chunks of it, warps."""

    BM: int
    BN: int
    WIDTH: int
    CHUNK: int  # columns of keys and values taken at once; 1: all of them
    warps: int


def blocks_for(
    key_size: int, value_size: int, dtype: torch.dtype, heavy: bool = False, lanes: int = 32
) -> Blocks:
    """The blocks for these sizes: a fixed choice, so that no result depends on a timing.

    Keys and values are padded to the same size, a power of two from 64 up: few kernels, each of which
    the tests can compile for every target.
    """
    width = max(64, triton.next_power_of_2(max(key_size, value_size)))
    if dtype == torch.float32:  # no tensor cores: a thread holds whole rows of its operands
        n = 16 if width > 64 or heavy else 32
        threads = 128 if width == 128 and lanes == 32 else 256  # more would hold more in vain
        return Blocks(16, n, width, 32, threads // lanes)
    m = (64 if width <= 64 and not heavy else 32) if width <= 128 else 16
    return Blocks(m, 32, width, 1, 256 // lanes)


class Plan(NamedTuple):
    """What a kernel is compiled for."""

    KIND: int
    REGIME: int
    PER_ROW: bool
    STEEP: bool  # whether slopes may exceed what float16 holds
    UPCAST: bool
    DROP: bool
    WANTED: bool
    D: int
    E: int
    BM: int
    BN: int
    WIDTH: int
    CHUNK: int


class Arguments(NamedTuple):
    """What all kernels of a call share."""

    own: tuple[Any, ...]  # the map's parameters
    conditions: tuple[Any, ...]
    dropout: tuple[Any, ...]
    plan: Plan
    options: dict[str, int]
    registers: dict[str, dict[str, int]]  # more options, by kernel


def arguments_of(
    queries: Tensor,
    value_size: int,
    visible: Visible,
    family: Family,
    scale: float,
    dropout: tuple[int, float],
) -> Arguments:
    """The map's parameter, masks and bias, dropout's seed and share, and the constants."""
    own, regime, heavy = _map_of(family, queries)
    target = Target.current()
    blocks = blocks_for(queries.shape[2], value_size, queries.dtype, heavy, target.lanes)
    seed, share = dropout
    plan = Plan(
        KINDS[family.kind],
        regime,
        bool(own.kind),
        heavy,
        # The interpreter multiplies bfloat16 wrongly.
        os.environ.get("TRITON_INTERPRET") == "1" and queries.dtype == torch.bfloat16,
        share > 0,
        False,
        queries.shape[2],
        value_size,
        *blocks[:4],
    )
    factor = 1 / (1 - share) if share < 1 else 0.0
    conditions = (scale, *_conditions(visible, queries.device, blocks))
    drop = (seed, share, factor)
    options = {"num_warps": blocks.warps, "num_stages": 1}
    more = {}
    if target.backend == "cuda":
        more = _registers(blocks, queries.dtype, heavy, visible.period)
    return Arguments(own.values, conditions, drop, plan, options, more)


def _registers(
    blocks: Blocks, dtype: torch.dtype, heavy: bool, period: int
) -> dict[str, dict[str, int]]:
    """Limits for the kernels that NVIDIA's compiler would squeeze into 64, 80 or 128 registers.

    It would rather spill a few of them than let fewer blocks run at a time; a limit is obeyed. One
    query for each head has kernels of its own, since Triton takes a 1 for a constant.
    """
    if dtype == torch.float32:
        backward = ("queries", "keys") if blocks.WIDTH > 64 or heavy else ()
        crowded = ("threshold", *backward)
    else:
        crowded = ("output",) if blocks.WIDTH > 128 else ()
        crowded += ("threshold",) if period == 1 else ()
    return {kernel: {"maxnreg": 248} for kernel in crowded}


def _map_of(family: Family, queries: Tensor) -> tuple[Parameters, int, bool]:
    """The map's parameters, its regime, and whether that needs many registers."""
    parameter = family.parameter[..., None] if family.parameter.ndim else family.parameter
    if family.kind == "ksubsets":
        return ksubsets.parts_of(parameter, queries), 0, False
    return _REGIMES[family.kind].of(parameter, queries)


def _conditions(visible: Visible, device: torch.device, blocks: Blocks) -> tuple[Any, ...]:
    mask, anywhere = visible.mask, None
    if mask is not None:
        mask = mask.contiguous()
        anywhere = _by_block(mask, blocks.BM, blocks.BN)
        mask = mask.view(torch.int8)
    bias = None if visible.bias is None else visible.bias.contiguous()
    mask_of, bias_of = (  # one mask for all heads comes expanded, with a stride of 0
        None if which is None else which.to(device).contiguous()
        for which in (visible.mask_of, visible.bias_of)
    )
    masks = (mask, mask_of, anywhere, _height(mask))
    return *masks, bias, bias_of, _height(bias), visible.causal


def _height(part: Tensor | None) -> int:
    """Rows of each mask: one for all queries, or one for each."""
    return 1 if part is None else part.shape[1]


def _by_block(mask: Tensor, m: int, n: int) -> Tensor:
    """Whether a block of the mask (K, M or 1, N) has any True: (K, blocks of M or 1, blocks of N)."""
    across = m if mask.shape[1] > 1 else 1
    short, missing = -mask.shape[1] % across, -mask.shape[2] % n
    padded = torch.nn.functional.pad(mask, (0, missing, 0, short))
    tiles = padded.unflatten(2, (-1, n)).unflatten(1, (-1, across))
    return tiles.any(-1).any(2).to(torch.int8).contiguous()
