r"""Convolution, ReLU and max-pooling in one: :math:`\max(0, \max_{2\times2}(w * x + b))`."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hopfy._runtime.compilation import compiled, runs_compiled
from hopfy._runtime.dispatch import is_compiling
from hopfy._runtime.threads import over_rows

__all__ = ["conv_relu_pool", "reference"]


def conv_relu_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Pooled maps (N, O, H', W') of images (N, C, H, W); weight (O, C, h, w), bias (O,).

    The convolution has stride 1 and no padding; windows of 2 x 2 are pooled, and a row or column
    that is left over is not used.
    """
    if not _can_be_compiled(images, weight, bias) or compiled("conv_pool.cpu") is None:
        return reference(images, weight, bias)
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


def reference(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in plain torch."""
    # The maximum before ReLU is the same as after it, for a quarter of the work.
    return functional.max_pool2d(functional.conv2d(images, weight, bias), 2).relu()


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        loops: Any = compiled("conv_pool.cpu")
        pixels, (outputs, channels, tall, wide) = _by_pixel(images), weight.shape
        shape = (len(pixels), (pixels.shape[1] - tall + 1) // 2, (pixels.shape[2] - wide + 1) // 2)
        pooled = torch.empty(*shape, outputs)
        winners = torch.empty(*shape, outputs, dtype=torch.uint8)
        filled = -outputs % loops.LANES
        over_rows(
            loops.conv_pool_forward,
            len(pixels),
            winners.numel() * weight[0].numel(),
            pixels,
            tall,
            wide * channels,
            functional.pad(_as_patches(weight).T, (0, filled)).contiguous().numpy(),
            functional.pad(bias.detach(), (0, filled)).numpy(),
            pooled.numpy(),
            winners.numpy(),
        )
        ctx.save_for_backward(images, weight, bias, winners)
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        images, weight, bias, winners = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative may be asked for
            return _differentiable_gradients(
                (images, weight, bias), cotangents[0], ctx.needs_input_grad
            )
        return _gradients(images, weight, winners, cotangents[0], ctx.needs_input_grad[0])


def _differentiable_gradients(
    inputs: tuple[Tensor, ...], cotangent: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    wanted = [each for each, asked in zip(inputs, needed, strict=True) if asked]
    found = iter(torch.autograd.grad(reference(*inputs), wanted, cotangent, create_graph=True))
    return tuple(next(found) if asked else None for asked in needed)


def _gradients(
    images: Tensor, weight: Tensor, winners: Tensor, cotangent: Tensor, of_images: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    loops: Any = compiled("conv_pool.cpu")
    _, channels, tall, wide = weight.shape
    stretch = wide * channels
    pixels = _by_pixel(images)
    gradient = np.empty((len(pixels) if of_images else 0, *pixels.shape[1:]), pixels.dtype)
    kernels = _as_patches(weight).view(-1, tall, stretch)
    kernels = functional.pad(kernels, (0, -stretch % loops.LANES)).contiguous()
    parts = over_rows(
        loops.conv_pool_backward,
        len(pixels),
        winners.numel() * tall * stretch,
        pixels,
        kernels.numpy(),
        _by_pixel(cotangent),
        winners.numpy(),
        gradient,
    )
    parts.sort(key=itemgetter(0))  # threads end in any order, sums should not depend on it
    of_kernels = torch.from_numpy(sum(part[1] for part in parts)).view_as(kernels)
    of_weight = of_kernels[..., :stretch].reshape(-1, tall, wide, channels).permute(0, 3, 1, 2)
    return (
        torch.from_numpy(gradient).permute(0, 3, 1, 2) if of_images else None,
        of_weight.contiguous(),
        torch.from_numpy(sum(part[2] for part in parts)),
    )


def _by_pixel(x: Tensor) -> Any:
    """(N, C, H, W) as an array (N, H, W, C) without gaps."""
    return x.detach().permute(0, 2, 3, 1).contiguous().numpy()


def _as_patches(weight: Tensor) -> Tensor:
    """Weights (O, C, h, w) as rows (O, h * w * C), in the order in which an image lies in memory."""
    return weight.detach().permute(0, 2, 3, 1).flatten(1)
