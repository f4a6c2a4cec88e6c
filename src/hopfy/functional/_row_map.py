"""From a row solver to a differentiable function: autograd, vmap, forward mode, torch.compile.

A row map has one tensor of scores (..., N), one parameter (0-d, beside the rows (..., 1), or one for
each entry (..., N)), a ``solve`` and a ``vjp`` whose Jacobian is symmetric: it is the Hessian of a
conjugate function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hopfy._runtime.backends import chosen_backend, use_backend
from hopfy._runtime.dispatch import (
    forward_mode_is_active,
    is_compiling,
    is_tracing,
    records_gradients,
    transforms_are_active,
)

__all__ = ["ByParameter", "row_map"]

Solve = Callable[[Tensor, Tensor], Tensor]
Vjp = Callable[[Tensor, Tensor, Tensor], Tensor]
Slope = Callable[[Tensor, Tensor], Tensor]


class ByParameter(NamedTuple):
    """The derivative of the weights by the parameter, both ways.

    Attributes:
        vjp: ``(weights, parameter, cotangent) ->`` gradient, of a shape that sums to the parameter's.
        jvp: ``(weights, parameter, tangent) ->`` change of the weights.
    """

    vjp: Vjp
    jvp: Vjp

    @classmethod
    def along(cls, slope: Slope) -> ByParameter:
        """For a parameter beside the rows: ``slope`` (..., N) is the derivative by it."""

        def vjp(weights: Tensor, parameter: Tensor, cotangent: Tensor) -> Tensor:
            inner = torch.where(weights > 0, cotangent, 0.0)  # what is not selected has no slope
            return (slope(weights, parameter) * inner).sum(-1, keepdim=True)

        def jvp(weights: Tensor, parameter: Tensor, tangent: Tensor) -> Tensor:
            return slope(weights, parameter) * tangent

        return cls(vjp, jvp)


def row_map(name: str, solve: Solve, vjp: Vjp, slope: Slope | ByParameter) -> Solve:
    """Return ``(scores, parameter) -> weights``, differentiable any number of times in both.

    Three entry points share these functions: an `autograd.Function` for ordinary eager use, one with
    ``setup_context``, a vmap rule and a forward mode for `torch.func`, and the custom operator
    ``hopfy::name`` that `torch.compile` and `torch.export` keep whole in their graphs.

    Args:
        name: of the operator.
        solve: ``(scores, parameter) -> weights``.
        vjp: ``(weights, parameter, cotangent) -> gradient`` with respect to the scores.
        slope: ``(weights, parameter) ->`` derivative of the weights by a parameter beside the rows,
            or `ByParameter` for one of another kind.
    """
    by_parameter = slope if isinstance(slope, ByParameter) else ByParameter.along(slope)

    def gradients(
        weights: Tensor, parameter: Tensor, cotangent: Tensor, needed: bool
    ) -> tuple[Tensor, Tensor | None]:
        gradient = vjp(weights, parameter, cotangent)
        if not needed:
            return gradient, None
        along = by_parameter.vjp(weights, parameter, cotangent)
        return gradient, along.sum_to_size(parameter.shape).to(parameter.dtype)

    eager = _eager_function(name, solve, gradients)
    transformable = _transformable_function(name, solve, vjp, by_parameter, gradients)
    operator = _operator(name, solve, gradients)

    def apply(scores: Tensor, parameter: Tensor) -> Tensor:
        if is_compiling() and not torch.onnx.is_in_onnx_export():
            weights = operator(scores, parameter)
        elif transforms_are_active() or forward_mode_is_active():
            weights = transformable.apply(scores, parameter)
        elif records_gradients(scores, parameter) and not is_tracing():
            weights = eager.apply(scores, parameter)
        else:
            weights = solve(scores, parameter)
        return cast(Tensor, weights)

    return apply


Gradients = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


def _eager_function(name: str, solve: Solve, gradients: Gradients) -> Any:
    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: Tensor, parameter: Tensor) -> Tensor:
            weights = solve(scores.detach(), parameter.detach())
            ctx.save_for_backward(weights, parameter)
            ctx.backend = chosen_backend()  # the backward pass may run on another thread
            return weights

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Any:
            weights, parameter = ctx.saved_tensors
            with use_backend(ctx.backend):
                return gradients(weights, parameter, cotangent, ctx.needs_input_grad[1])

    Eager.__name__ = Eager.__qualname__ = name
    return Eager


def _transformable_function(
    name: str, solve: Solve, vjp: Vjp, by_parameter: ByParameter, gradients: Gradients
) -> Any:
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
            weights, parameter = ctx.saved_tensors
            return gradients(weights, parameter, cotangent, ctx.needs_input_grad[1])

        @staticmethod
        def jvp(ctx: Any, scores_t: Tensor | None, parameter_t: Tensor | None) -> Tensor:
            weights, parameter = ctx.saved_tensors
            tangent = torch.zeros_like(weights)
            if scores_t is not None:
                tangent = tangent + vjp(weights, parameter, scores_t)
            if parameter_t is not None:
                tangent = tangent + by_parameter.jvp(weights, parameter, parameter_t)
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
                between = (1,) * (scores.ndim - parameter.ndim)
                parameter = parameter.reshape(info.batch_size, *between, *parameter.shape[1:])
            return Transformable.apply(scores, parameter), 0  # type: ignore[no-untyped-call]

    Transformable.__name__ = Transformable.__qualname__ = f"{name}_transformable"
    return Transformable


def _operator(name: str, solve: Solve, gradients: Gradients) -> Any:
    operator = torch.library.custom_op(
        f"hopfy::{name}",
        lambda scores, parameter: solve(scores.detach(), parameter.detach()).contiguous(),
        mutates_args=(),
        schema="(Tensor scores, Tensor parameter) -> Tensor",
    )

    @operator.register_fake
    def _(scores: Tensor, parameter: Tensor) -> Tensor:
        return torch.empty_like(scores, memory_format=torch.contiguous_format)

    def setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    def backward(ctx: Any, cotangent: Tensor) -> Any:
        weights, parameter = ctx.saved_tensors
        return gradients(weights, parameter, cotangent, ctx.needs_input_grad[1])

    operator.register_autograd(backward, setup_context=setup)
    return operator
