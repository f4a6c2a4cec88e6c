r"""Convolution, ReLU and max-pooling in one: :math:`\max(0, \max_{2\times2}(w * x + b))`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopfy._kernels.conv_pool import reference
from hopfy._runtime.compilation import compiled, runs_compiled
from hopfy._runtime.dispatch import is_compiling
from hopfy._runtime.second_derivatives import recorded_gradients

__all__ = ["conv_relu_pool"]


def conv_relu_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Pooled maps (N, O, H', W') of images (N, C, H, W); weight (O, C, h, w), bias (O,).

    The convolution has stride 1 and no padding; windows of 2 x 2 are pooled, and a row or column
    that is left over is not used.
    """
    if not _can_be_compiled(images, weight, bias) or compiled("conv_pool.cpu") is None:
        return reference.conv_relu_pool(images, weight, bias)
    return _ConvReluPool.apply(images, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def _can_be_compiled(images: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Single precision on a CPU, in shapes that fit; for the others torch raises its own error."""
    if is_compiling() or images.ndim != 4 or images.shape[1] != weight.shape[1]:
        return False
    fits = all(
        side > kernel for side, kernel in zip(images.shape[2:], weight.shape[2:], strict=True)
    )
    return fits and all(
        runs_compiled(each) and each.dtype == torch.float32 for each in (images, weight, bias)
    )


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        loops: Any = compiled("conv_pool.cpu")
        pooled, winners = loops.solve(images, weight, bias)
        ctx.save_for_backward(images, weight, bias, winners)
        maps: Tensor = pooled.permute(0, 3, 1, 2)
        return maps

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        images, weight, bias, winners = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative may be asked for
            inputs = images, weight, bias
            return tuple(
                recorded_gradients(
                    reference.conv_relu_pool, inputs, cotangents[0], ctx.needs_input_grad
                )
            )
        loops: Any = compiled("conv_pool.cpu")
        return loops.vjp(images, weight, winners, cotangents[0], ctx.needs_input_grad[0])
