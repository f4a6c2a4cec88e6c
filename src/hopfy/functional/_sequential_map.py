"""Sequential k-subsets as a differentiable function of scores and of pair scores.

The map is piecewise linear in both. Its Jacobian belongs to the active subsets and is constant
around almost every point, so the product with it (``jvp``) and with its transpose (``vjp``) are each
other's derivative, and derivatives of any order follow. Both are row maps of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._kernels import sequential as kernel
from hopfy._runtime.transfer import to_device_of, to_host
from hopfy.functional._row_map import Gradients, Needed, RowMap, Tensors, differentiable

__all__ = ["weights_of_pairs"]

_INPUTS = "Tensor unary, Tensor edges, Tensor budgets"


class _Memo(NamedTuple):
    """The active subsets, and whether the gradient of the edges is wanted."""

    solution: kernel.Solution
    wants_edges: bool


# --- the weights (..., N) of unary scores (..., N), edges (..., N - 1) and budgets (..., 1) ------------


def _weights(inputs: Tensors, _: object, needed: Needed) -> tuple[Tensors, _Memo]:
    unary, solution = inputs[0], _solve(inputs, needed[1])
    # A copy, since the solution stays alive for the backward pass.
    weights = to_device_of(unary, solution.y.reshape(unary.shape), copy=True)
    return (weights,), _Memo(solution, needed[1])


def _kept(inputs: Tensors, outputs: Tensors, memo: _Memo | None) -> Tensors:
    """The inputs. Where the solution is known, the weights stand for the scores: for their shape."""
    return inputs if memo is None else (*outputs, *inputs[1:])


def _weights_vjp(
    kept: Tensors, cotangents: Tensors, needed: Needed, memo: _Memo | None
) -> Gradients:
    by_scores, by_edges = _vjp(*kept, *cotangents, memo=memo)
    return by_scores, by_edges if needed[1] else None, None


def _weights_jvp(kept: Tensors, tangents: Gradients) -> Tensors:
    return (_jvp(*kept, *_or_zeros(tangents[:2], kept)),)


# --- the product of a cotangent (..., N) with the Jacobian -----------------------------------------


def _vjp_product(inputs: Tensors, memo: _Memo | None, _: Needed) -> tuple[Tensors, _Memo]:
    unary, edges, _budgets, cotangent = inputs
    solution, wants_edges = memo = memo or _Memo(_solve(inputs[:3], True), True)
    # Float32 where that holds every digit of the cotangent.
    wide = torch.float64 if cotangent.dtype is torch.float64 else torch.float32
    given, pairs = to_host(cotangent, edges)
    entering = _rows(given, unary, unary.shape[-1], wide)
    by_scores, by_edges = kernel.vjp(solution, _edge_rows(pairs, unary), entering, wants_edges)
    by_edges = by_edges.reshape(*unary.shape[:-1], by_edges.shape[-1])
    found = to_device_of(cotangent, by_scores.reshape(unary.shape)), to_device_of(edges, by_edges)
    return found, memo


def _vjp_vjp(kept: Tensors, cotangents: Tensors, _: Needed, memo: _Memo | None) -> Gradients:
    tangent, edge_tangent = cotangents
    if memo is not None and not memo.wants_edges:
        edge_tangent = torch.zeros_like(kept[1])
    return None, None, None, _jvp(*kept, tangent, edge_tangent, memo=memo)


def _vjp_jvp(kept: Tensors, tangents: Gradients) -> Tensors:
    return _vjp(*kept, *_or_zeros(tangents[3:], kept))  # type: ignore[no-any-return]


# --- the product of the Jacobian with tangents (..., N) and (..., N - 1) ----------------------------


def _jvp_product(inputs: Tensors, memo: _Memo | None, _: Needed) -> tuple[Tensors, _Memo]:
    unary, edges, _budgets, tangent, edge_tangent = inputs
    memo = memo or _Memo(_solve(inputs[:3], True), True)
    along = _rows(tangent, unary, unary.shape[-1], torch.float64)
    along_edges = _rows(edge_tangent, unary, edges.shape[-1], torch.float64)
    change = kernel.jvp(memo.solution, _edge_rows(edges, unary), along, along_edges)
    return (change.reshape(unary.shape).to(tangent),), memo


def _jvp_vjp(kept: Tensors, cotangents: Tensors, needed: Needed, memo: _Memo | None) -> Gradients:
    memo = memo and memo._replace(wants_edges=needed[4])
    by_scores, by_edges = _vjp(*kept, *cotangents, memo=memo)
    return None, None, None, by_scores, by_edges if needed[4] else None


def _jvp_jvp(kept: Tensors, tangents: Gradients) -> Tensors:
    return (_jvp(*kept, *_or_zeros(tangents[3:], kept)),)


# --- what they share -------------------------------------------------------------------------------


def _solve(inputs: Tensors, wants_edges: bool) -> kernel.Solution:
    """Solve in float64 on the CPU; an error if a row has fewer entries to select than k."""
    unary, edges, budgets = to_host(*inputs)
    scores = _rows(unary, unary, unary.shape[-1], torch.float64)
    k = _rows(budgets, unary, 1, torch.int64).flatten()
    # At t = 0 the pairs' gradient depends on the mixture, which the relaxation does not list.
    wants_subsets = wants_edges and bool((edges == 0).any())
    solution = kernel.solve(scores, _edge_rows(edges, unary), k, wants_subsets)
    if bool(solution.missing.any()):
        row = int(solution.missing.nonzero()[0, 0])
        raise ValueError(
            f"expected k to be at most the number of unmasked entries, got k = {int(k[row])} with "
            f"{int(k[row] - solution.missing[row])} of them in row {row}; lower k or change the mask."
        )
    return solution


def _edge_rows(edges: Tensor, unary: Tensor) -> Tensor:
    """(R, N - 1), or (1, N - 1) where all rows share them."""
    if edges.ndim == 1:
        return edges.detach().to("cpu", torch.float64).unsqueeze(0).contiguous()
    return _rows(edges, unary, edges.shape[-1], torch.float64)


def _rows(part: Tensor, unary: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """(R, size) on the CPU, one row for each of the scores."""
    shape = (*unary.shape[:-1], size)
    rows = part.detach().to("cpu", dtype)
    if rows.shape != shape:
        rows = rows.expand(shape)
    if rows.ndim != 2:
        rows = rows.reshape(unary.shape[:-1].numel(), size)
    return rows.contiguous()


def _or_zeros(tangents: Gradients, like: Tensors) -> Tensors:
    return tuple(
        torch.zeros_like(part) if tangent is None else tangent
        for tangent, part in zip(tangents, like, strict=False)
    )


def _blank(rows: Tensor, size: int, like: Tensor) -> Tensor:
    return torch.empty(*rows.shape[:-1], size, dtype=like.dtype, device=like.device)


weights_of_pairs = differentiable(
    RowMap(
        name="sequential_ksubsets",
        schema=f"({_INPUTS}) -> Tensor",
        solve=_weights,
        keep=_kept,
        vjp=_weights_vjp,
        jvp=_weights_jvp,
        blank=lambda unary, edges, budgets: (_blank(unary, unary.shape[-1], unary),),  # noqa: ARG005
    )
)
_vjp = differentiable(
    RowMap(
        name="sequential_ksubsets_vjp",
        schema=f"({_INPUTS}, Tensor cotangent) -> (Tensor, Tensor)",
        solve=_vjp_product,
        keep=lambda inputs, outputs, memo: inputs[:3],  # noqa: ARG005
        vjp=_vjp_vjp,
        jvp=_vjp_jvp,
        blank=lambda unary, edges, budgets, cotangent: (  # noqa: ARG005
            _blank(unary, unary.shape[-1], cotangent),
            _blank(unary, edges.shape[-1], edges),
        ),
    )
)
_jvp = differentiable(
    RowMap(
        name="sequential_ksubsets_jvp",
        schema=f"({_INPUTS}, Tensor tangent, Tensor edge_tangent) -> Tensor",
        solve=_jvp_product,
        keep=lambda inputs, outputs, memo: inputs[:3],  # noqa: ARG005
        vjp=_jvp_vjp,
        jvp=_jvp_jvp,
        blank=lambda unary, edges, budgets, tangent, edge_tangent: (  # noqa: ARG005
            _blank(unary, unary.shape[-1], tangent),
        ),
    )
)
