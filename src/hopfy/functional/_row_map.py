"""From a row solver to a differentiable function: autograd, vmap, forward mode, torch.compile.

A row map has one tensor of scores (..., N), one parameter beside the rows (0-d or (..., 1)), a
``solve`` and a ``vjp`` whose Jacobian is symmetric: it is the Hessian of a conjugate function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["row_map"]

Solve = Callable[[Tensor, Tensor], Tensor]
Vjp = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def row_map(name: str, solve: Solve, vjp: Vjp) -> Solve:
    """Return ``(scores, parameter) -> weights``, differentiable any number of times in both.

    Three doors lead to the same two functions: a lean `autograd.Function` for ordinary eager use,
    one with ``setup_context`` and a vmap rule for `torch.func`, and the custom operator
    ``hopfy::name`` that `torch.compile` and `torch.export` keep whole in their graphs.
    """
    eager = _eager_function(name, solve, vjp)
    transformed = _transformable_function(name, solve, vjp)
    operator = _operator(name, solve, vjp)

    def apply(scores: Tensor, parameter: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return operator(scores, parameter)  # type: ignore[no-any-return]
        if torch._C._are_functorch_transforms_active():
            return transformed.apply(scores, parameter)  # type: ignore[no-any-return,no-untyped-call]
        if torch.is_grad_enabled() and (scores.requires_grad or parameter.requires_grad):
            return eager.apply(scores, parameter)  # type: ignore[no-any-return,no-untyped-call]
        if torch.autograd.forward_ad._current_level >= 0:
            return transformed.apply(scores, parameter)  # type: ignore[no-any-return,no-untyped-call]
        return solve(scores, parameter)

    return apply


def _gradients(
    vjp: Vjp, weights: Tensor, parameter: Tensor, cotangent: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    scores_grad, parameter_grad = vjp(weights, parameter, cotangent)
    if not needs[1]:
        return scores_grad, None
    return scores_grad, parameter_grad.sum_to_size(parameter.shape).to(parameter.dtype)


def _eager_function(name: str, solve: Solve, vjp: Vjp) -> Any:
    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: Tensor, parameter: Tensor) -> Tensor:
            weights = solve(scores.detach(), parameter.detach())
            ctx.save_for_backward(weights, parameter)
            return weights

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Any:
            return _gradients(vjp, *ctx.saved_tensors, cotangent, ctx.needs_input_grad)

    Eager.__name__ = Eager.__qualname__ = name
    return Eager


def _transformable_function(name: str, solve: Solve, vjp: Vjp) -> Any:
    class Transformable(torch.autograd.Function):
        @staticmethod
        def forward(scores: Tensor, parameter: Tensor) -> Tensor:
            return solve(scores.detach(), parameter.detach())

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
            ctx.save_for_backward(output, inputs[1])
            ctx.save_for_forward(output, inputs[1])

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Any:
            return _gradients(vjp, *ctx.saved_tensors, cotangent, ctx.needs_input_grad)

        @staticmethod
        def jvp(ctx: Any, scores_t: Tensor | None, parameter_t: Tensor | None) -> Tensor:
            weights, parameter = ctx.saved_tensors
            tangent = torch.zeros_like(weights)
            if scores_t is not None:
                tangent = tangent + vjp(weights, parameter, scores_t)[0]
            if parameter_t is not None:
                # One reverse pass per entry is wasteful, but J is not kept: differentiate vjp,
                # which is linear in the cotangent, with respect to that cotangent.
                with torch.enable_grad():
                    dual = torch.zeros_like(weights).requires_grad_()
                    along = vjp(weights.detach(), parameter.detach(), dual)[1]
                    (column,) = torch.autograd.grad(along.sum(), dual)
                tangent = tangent + column * parameter_t
            return tangent

        @staticmethod
        def vmap(info: Any, in_dims: Any, scores: Tensor, parameter: Tensor) -> Any:
            scores_dim, parameter_dim = in_dims
            if scores_dim is None:
                scores = scores.expand(info.batch_size, *scores.shape)
            else:
                scores = scores.movedim(scores_dim, 0)
            if parameter_dim is not None:
                parameter = parameter.movedim(parameter_dim, 0)
                missing = scores.ndim - parameter.ndim
                parameter = parameter.reshape(
                    parameter.shape[0], *(1,) * missing, *parameter.shape[1:]
                )
            return Transformable.apply(scores, parameter), 0  # type: ignore[no-untyped-call]

    Transformable.__name__ = Transformable.__qualname__ = f"{name}_transformable"
    return Transformable


def _operator(name: str, solve: Solve, vjp: Vjp) -> Any:
    def fresh(scores: Tensor, parameter: Tensor) -> Tensor:
        return solve(scores, parameter).clone(memory_format=torch.contiguous_format)

    operator = torch.library.custom_op(
        f"hopfy::{name}",
        fresh,
        mutates_args=(),
        schema="(Tensor scores, Tensor parameter) -> Tensor",
    )

    @operator.register_fake
    def _(scores: Tensor, parameter: Tensor) -> Tensor:  # noqa: ARG001
        return torch.empty_like(scores, memory_format=torch.contiguous_format)

    def setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return _gradients(vjp, *ctx.saved_tensors, cotangent, ctx.needs_input_grad)

    operator.register_autograd(backward, setup_context=setup)
    return operator
