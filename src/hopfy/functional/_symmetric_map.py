"""Maps of scores and one parameter to weights, whose Jacobian is symmetric."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.functional._row_map import Gradients, Needed, RowMap, Tensors, differentiable

__all__ = ["ByParameter", "symmetric_map"]

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


def symmetric_map(name: str, solve: Solve, vjp: Vjp, slope: Slope | ByParameter) -> Solve:
    """Return ``(scores, parameter) -> weights``, differentiable any number of times in both.

    The Jacobian with respect to the scores is the Hessian of a conjugate function, hence symmetric:
    one product serves both modes, and the weights determine it.

    Args:
        name: of the operator.
        solve: ``(scores, parameter) -> weights``.
        vjp: ``(weights, parameter, cotangent) -> gradient`` with respect to the scores.
        slope: ``(weights, parameter) ->`` derivative of the weights by a parameter beside the rows
            (0-d or (..., 1)), or `ByParameter` for one of another kind (one for each entry).
    """
    by_parameter = slope if isinstance(slope, ByParameter) else ByParameter.along(slope)

    def gradients(kept: Tensors, cotangents: Tensors, needed: Needed, memo: None) -> Gradients:
        gradient = vjp(*kept, *cotangents)
        return gradient, by_parameter.vjp(*kept, *cotangents) if needed[1] else None

    def change(kept: Tensors, tangents: Gradients) -> Tensors:
        (weights, parameter), (along_scores, along_parameter) = kept, tangents
        total = torch.zeros_like(weights)
        if along_scores is not None:
            total = total + vjp(weights, parameter, along_scores)
        if along_parameter is not None:
            total = total + by_parameter.jvp(weights, parameter, along_parameter)
        return (total,)

    return differentiable(
        RowMap(
            name=name,
            schema="(Tensor scores, Tensor parameter) -> Tensor",
            solve=lambda inputs, memo, needed: ((solve(*inputs),), None),  # noqa: ARG005
            keep=lambda inputs, weights, memo: (*weights, inputs[1]),  # noqa: ARG005
            vjp=gradients,
            jvp=change,
            blank=lambda scores, parameter: (  # noqa: ARG005
                torch.empty_like(scores, memory_format=torch.contiguous_format),
            ),
        )
    )
