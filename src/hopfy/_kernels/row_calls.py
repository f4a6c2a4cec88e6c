"""Calling a compiled row kernel on tensors of any leading shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopfy._runtime.threads import over_rows

__all__ = ["run_backward", "run_forward"]

_BITS = {torch.float32: np.int32, torch.float64: np.int64}


def run_forward(
    kernel: Callable[..., Any], scores: Tensor, parameter: Tensor
) -> tuple[Tensor, list[Any]]:
    """Run ``kernel(start, stop, scores, bits, parameter, weights)`` over all rows.

    Returns the weights and what the kernel had to say about each range of rows.
    """
    scores = scores.contiguous()
    weights = torch.empty_like(scores)
    rows, size = scores.numel() // scores.shape[-1], scores.shape[-1]
    array = scores.numpy().reshape(rows, size)
    said = over_rows(
        kernel,
        rows,
        array.size,
        array,
        array.view(_BITS[scores.dtype]),
        _per_row(parameter, scores),
        weights.numpy().reshape(rows, size),
    )
    return weights, said


def run_backward(
    kernel: Callable[..., Any], weights: Tensor, parameter: Tensor, cotangent: Tensor
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
        _per_row(parameter, weights),
        gradient.numpy().reshape(rows, size),
    )
    return gradient


def _per_row(parameter: Tensor, rows: Tensor) -> Any:
    """The parameter as float64: one number, or one for each row."""
    if parameter.ndim == 0:
        return np.array([parameter.item()])
    parameter = parameter.expand(*rows.shape[:-1], 1)
    return parameter.detach().reshape(-1).to(torch.float64).numpy()
