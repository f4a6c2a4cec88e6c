"""Running a compiled row kernel on tensors of any leading shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopfy._runtime.threads import over_rows

__all__ = ["per_row", "run_backward", "run_checked", "run_forward"]

_BITS = {torch.float32: np.int32, torch.float64: np.int64}


def run_forward(
    kernel: Callable[..., Any], scores: Tensor, parameter: Any, weights: Tensor | None = None
) -> tuple[Tensor, list[Any]]:
    """Run ``kernel(start, stop, scores, bits, parameter, weights)`` over all rows.

    ``bits`` are the scores as integers; ``parameter`` is an array with one entry, or one per row
    (`per_row`). Returns the weights, written in place if they are given, and the kernel's return
    values, one for each range of rows.
    """
    scores = scores.contiguous()
    weights = torch.empty_like(scores) if weights is None else weights
    rows, size = scores.numel() // scores.shape[-1], scores.shape[-1]
    array = scores.numpy().reshape(rows, size)
    returned = over_rows(
        kernel,
        rows,
        array.size,
        array,
        array.view(_BITS[scores.dtype]),
        parameter,
        weights.numpy().reshape(rows, size),
    )
    return weights, returned


def run_checked(
    kernel: Callable[..., Any], scores: Tensor, parameter: Any, refusal: Callable[[int], Exception]
) -> Tensor:
    """The weights of `run_forward`; the kernel returns the last row that has no solution, or -1."""
    weights, refused = run_forward(kernel, scores, parameter)
    if max(refused) >= 0:
        raise refusal(max(refused))
    return weights


def run_backward(
    kernel: Callable[..., Any], weights: Tensor, parameter: Any, cotangent: Tensor
) -> Tensor:
    """Run ``kernel(start, stop, weights, cotangent, parameter, gradient)`` over all rows."""
    weights, cotangent = weights.detach().contiguous(), cotangent.detach().contiguous()
    gradient = torch.empty_like(weights)
    rows, size = weights.numel() // weights.shape[-1], weights.shape[-1]
    over_rows(
        kernel,
        rows,
        weights.numel(),
        weights.numpy().reshape(rows, size),
        cotangent.numpy().reshape(rows, size),
        parameter,
        gradient.numpy().reshape(rows, size),
    )
    return gradient


def per_row(parameter: Tensor, rows: Tensor) -> Any:
    """The parameter as an array of float64: one number, or one for each row where they differ."""
    if parameter.ndim == 0:
        return np.array([parameter.item()])
    parameter = parameter.detach().expand(*rows.shape[:-1], 1)
    numbers = parameter.reshape(-1).to(torch.float64).numpy()
    return numbers[:1] if (numbers == numbers[0]).all() else numbers
