# mypy: ignore-errors
r"""Attention in Triton by blocks of queries and keys: no (M, N) array of weights ever exists.

Four kernels, each over blocks (BM queries, BN keys) whose scores are computed anew:

1. `threshold_kernel`: the maximum of each row and the list of key blocks that may have weight, then the
   map's threshold from these blocks only;
2. `output_kernel`: weights and their product with the values; it notes which blocks have any weight;
3. `queries_kernel`: per row the sums that the Jacobian needs, the gradients of queries and parameter;
4. `keys_kernel`: the gradients of keys and values, one program for each block of keys.

Every element of every result is written by one program, in a fixed order of additions: results are
the same in every run. The interface is that of `hopfy._kernels.attention`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from hopfy._kernels.attention.gpu_backward import keys_kernel, queries_kernel
from hopfy._kernels.attention.gpu_forward import factors_kernel, output_kernel, threshold_kernel
from hopfy._kernels.attention.gpu_plan import Arguments, arguments_of
from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.backends import launching_on

__all__ = ["State", "backward", "forward", "kept_weights"]

_LARGEST_HEAD = 256
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class State(NamedTuple):
    """What the backward pass needs beside the inputs."""

    backend = "triton"
    visible: Visible
    family: Family
    scale: float
    dropout: float
    arguments: Arguments
    rows: Tensor  # (4, G R): top, two numbers of the threshold, and sum of each row
    lists: tuple[Tensor, Tensor]  # key blocks of each query block, and how many
    used: Tensor  # (heads, query blocks, key blocks): whether any weight is there
    sizes: tuple[int, ...]  # queries of a head, keys, query heads of a key head, blocks of keys


def forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Visible,
    family: Family,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Tensor, State] | None:
    """See `hopfy._kernels.attention`; None for float64 and heads above 256."""
    (groups, rows, d), (count, e) = queries.shape, values.shape[1:]
    if max(d, e) > _LARGEST_HEAD or queries.dtype not in _DTYPES:
        return None
    if not queries.numel() or not values.numel():
        return None
    if seed is None:
        seed = int(torch.randint(1 << 62, (), device="cpu")) if dropout else 0
    call = arguments_of(queries, e, visible, family, scale, (seed, dropout))
    heads, across = groups * rows // visible.period, triton.cdiv(visible.period, call.plan.BM)
    along = triton.cdiv(count, call.plan.BN)
    lists = queries.new_empty(heads, across, along, dtype=torch.int32)
    state = State(
        visible,
        family,
        scale,
        dropout,
        call,
        queries.new_empty(4, groups * rows, dtype=torch.float32),
        (lists, queries.new_empty(heads, across, dtype=torch.int32)),
        queries.new_zeros(heads, across, along, dtype=torch.int8),
        (visible.period, count, rows // visible.period, along),
    )
    output = queries.new_empty(groups, rows, e)
    inputs = queries, keys, values
    shared = call.own, call.conditions
    last = state.sizes, call.plan
    with launching_on(queries):
        options = call.options | call.registers.get("threshold", {})
        threshold_kernel[(across * heads,)](
            inputs, *shared, state.rows, state.lists, *last, **options
        )
        found = call.dropout, state.rows, state.lists, state.used
        options = call.options | call.registers.get("output", {})
        output_kernel[(across * heads,)](inputs, output, *shared, *found, *last, **options)
    return output, state


def backward(
    state: State,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cotangent: Tensor,
    wanted: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, values and, if wanted, of the parameter of each row (G, R)."""
    call = state.arguments
    cotangent = cotangent.contiguous()
    inputs = queries, keys, values
    in_queries, in_keys, in_values = (torch.empty_like(x) for x in inputs)
    sums = state.rows.new_empty(2, state.rows.shape[1])
    in_parameter = sums.new_empty(queries.shape[:2] if wanted else 1)
    heads, across, along = state.used.shape
    shared = call.own, call.conditions, call.dropout, state.rows, sums
    plan = call.plan._replace(WANTED=wanted)
    with launching_on(queries):
        outputs = in_queries, in_parameter
        lists = state.lists, state.used, state.sizes
        options = call.options | call.registers.get("queries", {})
        queries_kernel[(across * heads,)](
            inputs, cotangent, outputs, *shared, *lists, plan, **options
        )
        outputs = in_keys, in_values
        last = state.used, state.sizes, call.plan
        options = call.options | call.registers.get("keys", {})
        keys_kernel[(along * queries.shape[0],)](
            inputs, cotangent, outputs, *shared, *last, **options
        )
    return in_queries, in_keys, in_values, in_parameter if wanted else None


def kept_weights(state: State, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """What dropout multiplied each weight (G, R, N) with."""
    period, count, repeat, _ = state.sizes
    factors = torch.empty(shape, dtype=torch.float32, device=state.rows.device)
    m, n = 32, 64
    grid = (triton.cdiv(period, m) * triton.cdiv(count, n) * shape[0] * repeat,)
    with launching_on(factors):
        factors_kernel[grid](factors, state.arguments.dropout, period, count, m, n)
    return factors.to(dtype)
