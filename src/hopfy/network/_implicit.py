r"""Gradients through a fixed point, by the implicit function theorem.

At :math:`q = f(q)`, :math:`f(q) = X^\top \hat y_\Omega(\beta X q)`, a cotangent v for q turns into
the solution g of :math:`(I - J) g = v`, :math:`J = \partial f / \partial q = \beta X^\top H X`. H
is the Hessian of :math:`\Omega^*`, so J is symmetric and :math:`I - J` is the energy's Hessian:
positive definite at a strict local minimum. Conjugate gradients solve the system with one product
per step; at an exactly retrieved pattern J = 0 and the first step is the answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["attach_implicit_gradient"]


def attach_implicit_gradient(state: Tensor, update: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``state`` (a fixed point of ``update``) with the gradient of the fixed point.

    The gradient reaches what ``update`` closes over (memories, beta, alpha); it does not reach the
    first query, on which an isolated fixed point does not depend.
    """
    state = state.detach()
    with torch.enable_grad():
        attached = update(state)
        leaf = state.clone().requires_grad_()
        image = update(leaf)
        result = state + (attached - attached.detach())
    if not result.requires_grad:
        return result

    def jacobian_times(vector: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(image, leaf, vector, retain_graph=True)
        return product

    result.register_hook(  # type: ignore[no-untyped-call]
        lambda cotangent: None if cotangent is None else _solve(jacobian_times, cotangent)
    )
    return result


def _solve(jacobian_times: Callable[[Tensor], Tensor], cotangent: Tensor) -> Tensor:
    """``(I - J) g = cotangent`` row by row, all rows at once, by conjugate gradients."""
    solution = torch.zeros_like(cotangent)
    residual = cotangent.clone()
    direction = residual
    power = residual.square().sum(-1, keepdim=True)
    small = power * torch.finfo(cotangent.dtype).eps ** 2
    for _ in range(2 * cotangent.shape[-1] + 10):
        if bool((power <= small).all()):
            return solution
        image = direction - jacobian_times(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        going = (power > small) & (curvature > 0)
        length = torch.where(going, power / torch.where(going, curvature, 1.0), 0.0)
        solution = solution + length * direction
        residual = residual - length * image
        previous, power = power, residual.square().sum(-1, keepdim=True)
        if not bool(going.any()):
            break
        share = torch.where(going, power / torch.where(going, previous, 1.0), 0.0)
        direction = residual + share * direction
    if bool((power > 1e-6 * cotangent.square().sum(-1, keepdim=True)).any()):
        warnings.warn(
            "the implicit gradient is inaccurate: some state is no strict minimum of the energy; "
            "run more steps, or use gradient='unrolled'.",
            RuntimeWarning,
            stacklevel=2,
        )
    return solution
