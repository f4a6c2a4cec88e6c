"""Sequential k-subsets as a differentiable function of rows of scores and of pair scores.

The map is piecewise linear in both. Its Jacobian belongs to the active subsets and is constant
around almost every point, so the product with it (``jvp``) and with its transpose (``vjp``) are each
other's derivative, and derivatives of any order follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopfy._kernels import sequential as kernel
from hopfy._runtime.dispatch import (
    forward_mode_is_active,
    is_compiling,
    is_tracing,
    records_gradients,
    transforms_are_active,
)

__all__ = ["solve_pairs"]


def solve_pairs(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
    """Weights (R, N) of scores (R, N), edges (R, N - 1) or (1, N - 1) and budgets (R)."""
    if is_tracing():
        raise RuntimeError(
            "expected plain torch operations to trace or to export to ONNX, got sequential k-subsets, "
            "whose solver is compiled code; use torch.compile or torch.export instead."
        )
    if is_compiling():
        return _operator(unary, edges, budgets)  # type: ignore[no-any-return]
    if transforms_are_active() or forward_mode_is_active():
        return _Map.apply(unary, edges, budgets)  # type: ignore[no-any-return,no-untyped-call]
    if records_gradients(unary, edges):
        return _Eager.apply(unary, edges, budgets)  # type: ignore[no-any-return,no-untyped-call]
    return _weights(unary, edges, budgets)


def _weights(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
    return _solve(unary, edges, budgets).y.to(unary)


def _solve(
    unary: Tensor, edges: Tensor, budgets: Tensor, always_active: bool = False
) -> kernel.Solution:
    """Solve in float64 on the CPU; an error if a row has fewer entries to select than k."""
    solution = kernel.solve(_plain(unary), _plain(edges), budgets.cpu(), always_active)
    if bool(solution.missing.any()):
        row = int(solution.missing.nonzero()[0, 0])
        k = int(budgets[row])
        raise ValueError(
            f"expected k to be at most the number of unmasked entries, got k = {k} with "
            f"{k - int(solution.missing[row])} of them in row {row}; lower k or change the mask."
        )
    return solution


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64).contiguous()


def _single(tensor: Tensor) -> Tensor:
    """On the CPU, in float32 where that holds every digit."""
    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return tensor.detach().to("cpu", dtype).contiguous()


def _wants_subsets(edges: Tensor, needs_edges: bool) -> bool:
    """At t = 0 the pairs' gradient depends on the mixture, which the relaxation does not list."""
    return needs_edges and bool((edges == 0).any())


def _vjp(
    solution: kernel.Solution, edges: Tensor, cotangent: Tensor, wants_edges: bool = True
) -> tuple[Tensor, Tensor]:
    by_scores, by_edges = kernel.vjp(solution, _plain(edges), _single(cotangent), wants_edges)
    if wants_edges:
        by_edges = (by_edges.sum(0, keepdim=True) if len(edges) == 1 else by_edges).to(edges)
    return by_scores.to(cotangent), by_edges


def _jvp(solution: kernel.Solution, edges: Tensor, tangent: Tensor, edge_tangent: Tensor) -> Tensor:
    by_edges = edge_tangent.expand(len(tangent), edges.shape[-1])
    change = kernel.jvp(solution, _plain(edges), _plain(tangent), _plain(by_edges))
    return change.to(tangent)


# --- eager: the backward pass knows the active subsets of the forward pass ------------------------


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
        solution = _solve(unary, edges, budgets, _wants_subsets(edges, ctx.needs_input_grad[1]))
        ctx.save_for_backward(edges)
        ctx.solution = solution  # neither an input nor the output: no need to track its versions
        return solution.y.to(unary, copy=True)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (edges,) = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1]
        if torch.is_grad_enabled():
            gradients = _EagerVjp.apply(cotangent, edges.detach(), ctx.solution, wanted)  # type: ignore[no-untyped-call]
        else:
            gradients = _vjp(ctx.solution, edges, cotangent, wanted)
        return gradients[0], gradients[1] if wanted else None, None


class _EagerVjp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cotangent: Tensor, edges: Tensor, solution: kernel.Solution, wants_edges: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.edges, ctx.solution, ctx.wants_edges = edges, solution, wants_edges
        return _vjp(solution, edges, cotangent, wants_edges)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor, edge_tangent: Tensor) -> Any:
        if not ctx.wants_edges:
            edge_tangent = torch.zeros_like(ctx.edges)
        change = _EagerJvp.apply(tangent, edge_tangent, ctx.edges, ctx.solution)  # type: ignore[no-untyped-call]
        return change, None, None, None


class _EagerJvp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tangent: Tensor, edge_tangent: Tensor, edges: Tensor, solution: kernel.Solution
    ) -> Tensor:
        ctx.edges, ctx.solution = edges, solution
        return _jvp(solution, edges, tangent, edge_tangent)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        gradients = _EagerVjp.apply(cotangent, ctx.edges, ctx.solution, True)  # type: ignore[no-untyped-call]
        return *gradients, None, None


# --- operators for torch.compile and torch.export -------------------------------------------------
# The active sets' sizes depend on the numbers, so a graph cannot hold them: each solves again.

_INPUTS = "Tensor unary, Tensor edges, Tensor budgets"


def _solved_vjp(
    unary: Tensor, edges: Tensor, budgets: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor]:
    return _vjp(_solve(unary, edges, budgets, _wants_subsets(edges, True)), edges, cotangent)


def _solved_jvp(
    unary: Tensor, edges: Tensor, budgets: Tensor, tangent: Tensor, edge_tangent: Tensor
) -> Tensor:
    solution = _solve(unary, edges, budgets, _wants_subsets(edges, True))
    return _jvp(solution, edges, tangent, edge_tangent)


_operator = torch.library.custom_op(
    "hopfy::sequential_ksubsets", _weights, mutates_args=(), schema=f"({_INPUTS}) -> Tensor"
)
_operator_vjp = torch.library.custom_op(
    "hopfy::sequential_ksubsets_vjp",
    _solved_vjp,
    mutates_args=(),
    schema=f"({_INPUTS}, Tensor cotangent) -> (Tensor, Tensor)",
)
_operator_jvp = torch.library.custom_op(
    "hopfy::sequential_ksubsets_jvp",
    _solved_jvp,
    mutates_args=(),
    schema=f"({_INPUTS}, Tensor tangent, Tensor edge_tangent) -> Tensor",
)


def _fresh(like: Tensor) -> Tensor:
    """What the kernels return: contiguous, whatever the strides of the inputs."""
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


@_operator.register_fake
def _(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
    return _fresh(unary)


@_operator_vjp.register_fake
def _(unary: Tensor, edges: Tensor, budgets: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    return _fresh(cotangent), _fresh(edges)


@_operator_jvp.register_fake
def _(
    unary: Tensor, edges: Tensor, budgets: Tensor, tangent: Tensor, edge_tangent: Tensor
) -> Tensor:
    return _fresh(tangent)


def _keep_rows(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])


def _operator_backward(ctx: Any, cotangent: Tensor) -> Any:
    return *_operator_vjp(*ctx.saved_tensors, cotangent), None


def _operator_vjp_backward(ctx: Any, tangent: Tensor, edge_tangent: Tensor) -> Any:
    return None, None, None, _operator_jvp(*ctx.saved_tensors, tangent, edge_tangent)


def _operator_jvp_backward(ctx: Any, cotangent: Tensor) -> Any:
    return None, None, None, *_operator_vjp(*ctx.saved_tensors, cotangent)


_operator.register_autograd(_operator_backward, setup_context=_keep_rows)
_operator_vjp.register_autograd(_operator_vjp_backward, setup_context=_keep_rows)
_operator_jvp.register_autograd(_operator_jvp_backward, setup_context=_keep_rows)


# --- for torch.func and forward mode --------------------------------------------------------------


class _Map(torch.autograd.Function):
    """Solves again for every product, as the operators do."""

    @staticmethod
    def forward(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
        return _weights(unary, edges, budgets)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return *_MapVjp.apply(*ctx.saved_tensors, cotangent), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, edge_tangent: Tensor | None, _: Any) -> Any:
        unary, edges, budgets = ctx.saved_tensors
        tangent = torch.zeros_like(unary) if tangent is None else tangent
        edge_tangent = torch.zeros_like(edges) if edge_tangent is None else edge_tangent
        return _MapJvp.apply(unary, edges, budgets, tangent, edge_tangent)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        unary, edges, budgets = _unfolded(info.batch_size, in_dims, inputs)
        y = _Map.apply(*_folded(unary, edges, budgets))  # type: ignore[no-untyped-call]
        return y.reshape(unary.shape), 0


class _MapVjp(torch.autograd.Function):
    @staticmethod
    def forward(
        unary: Tensor, edges: Tensor, budgets: Tensor, cotangent: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _solved_vjp(unary, edges, budgets, cotangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, tangent: Tensor, edge_tangent: Tensor) -> Any:
        change = _MapJvp.apply(*ctx.saved_tensors, tangent, edge_tangent)  # type: ignore[no-untyped-call]
        return None, None, None, change

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        unary, edges, budgets = ctx.saved_tensors
        if tangents[3] is None:
            return torch.zeros_like(unary), torch.zeros_like(edges)
        return _MapVjp.apply(unary, edges, budgets, tangents[3])  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        unary, edges, budgets, cotangent = _unfolded(info.batch_size, in_dims, inputs)
        folded = _folded(unary, edges, budgets)
        by_scores, by_edges = _MapVjp.apply(*folded, cotangent.flatten(0, 1))  # type: ignore[no-untyped-call]
        by_edges = by_edges.reshape(*unary.shape[:2], -1)
        if edges.shape[1] == 1:
            by_edges = by_edges.sum(1, keepdim=True)
        return (by_scores.reshape(unary.shape), by_edges), (0, 0)


class _MapJvp(torch.autograd.Function):
    @staticmethod
    def forward(
        unary: Tensor, edges: Tensor, budgets: Tensor, tangent: Tensor, edge_tangent: Tensor
    ) -> Tensor:
        return _solved_jvp(unary, edges, budgets, tangent, edge_tangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return None, None, None, *_MapVjp.apply(*ctx.saved_tensors, cotangent)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        unary, edges, budgets = ctx.saved_tensors
        along = torch.zeros_like(unary) if tangents[3] is None else tangents[3]
        along_edges = torch.zeros_like(edges) if tangents[4] is None else tangents[4]
        return _MapJvp.apply(unary, edges, budgets, along, along_edges)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        unary, edges, budgets, tangent, edge_tangent = _unfolded(info.batch_size, in_dims, inputs)
        folded = _folded(unary, edges, budgets)
        along = edge_tangent.expand(*unary.shape[:2], edge_tangent.shape[-1]).flatten(0, 1)
        change = _MapJvp.apply(*folded, tangent.flatten(0, 1), along)  # type: ignore[no-untyped-call]
        return change.reshape(unary.shape), 0


def _unfolded(size: int, in_dims: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Every input with the mapped dimension first."""
    return [
        part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0)
        for part, dim in zip(inputs, in_dims, strict=True)
    ]


def _folded(unary: Tensor, edges: Tensor, budgets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mapped dimension becomes rows; every row gets edges of its own."""
    edges = edges.expand(*unary.shape[:2], edges.shape[-1])
    return unary.flatten(0, 1), edges.flatten(0, 1), budgets.flatten(0, 1)
