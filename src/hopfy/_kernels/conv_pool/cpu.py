# mypy: ignore-errors
"""Convolution, ReLU and max-pooling of images in one pass, and the way back, compiled.

Of every window of four outputs only the largest one, if it is positive, has a gradient. The way back
therefore visits one in four outputs or fewer, where a dense convolution would multiply with zeros.

An image lies in memory by pixel: (height, width, channels). What one output of the convolution reads
is then a few *stretches* of memory, one for each row of its kernel, a *line* of the image apart.
Everything is done image by image, so that all of it stays in the nearest cache.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import torch
from torch.nn import functional

from hopfy._kernels.conv_pool.cpu_vectors import (
    LANES,
    SPARE,
    add_rows,
    end_list,
    sum_one,
    sum_three,
)
from hopfy._runtime.compilation import jit, part
from hopfy._runtime.threads import over_rows

__all__ = ["solve", "vjp"]

NONE = 4  # the winner of a window without a positive entry
# What is to stay in the nearest cache: the outputs of so many windows, and the weights of so many
# entries of a patch.
_AT_ONCE, _CACHED = 16, 128


def solve(images, weight, bias):
    """Pooled maps (N, H', W', O) of images (N, C, H, W), and which entry of each window won."""
    pixels, (outputs, channels, tall, wide) = _by_pixel(images), weight.shape
    shape = (len(pixels), (pixels.shape[1] - tall + 1) // 2, (pixels.shape[2] - wide + 1) // 2)
    pooled = torch.empty(*shape, outputs)
    winners = torch.empty(*shape, outputs, dtype=torch.uint8)
    filled = -outputs % LANES
    over_rows(
        _forward,
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
    return pooled, winners


def vjp(images, weight, winners, cotangent, of_images):
    """Gradients of the images (None if not ``of_images``), of the weight and of the bias."""
    _, channels, tall, wide = weight.shape
    stretch = wide * channels
    pixels = _by_pixel(images)
    gradient = np.empty((len(pixels) if of_images else 0, *pixels.shape[1:]), pixels.dtype)
    kernels = _as_patches(weight).view(-1, tall, stretch)
    kernels = functional.pad(kernels, (0, -stretch % LANES)).contiguous()
    parts = over_rows(
        _backward,
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


def _by_pixel(x):
    """(N, C, H, W) as an array (N, H, W, C) without gaps."""
    return x.detach().permute(0, 2, 3, 1).contiguous().numpy()


def _as_patches(weight):
    """Weights (O, C, h, w) as rows (O, h * w * C), in the order in which an image lies in memory."""
    return weight.detach().permute(0, 2, 3, 1).flatten(1)


@jit
def _forward(start, stop, images, tall, stretch, table, bias, pooled, winners):
    """The largest output of every window, or zero, and which of the four it is.

    Args:
        start, stop: which images.
        images: (N, H, W, C).
        tall: height of the convolution's kernel.
        stretch: its width times C.
        table: (tall * stretch, O filled up to vectors), the weights in the order of a patch.
        bias: (O filled up,).
        pooled, winners: (N, H', W', O).
    """
    _, height, width, channels = images.shape
    _, down, across, _ = pooled.shape
    line, lanes = width * channels, table.shape[1]
    rows = max(1, _AT_ONCE // across)
    image = np.zeros(height * line + LANES, images.dtype)
    maps = np.empty((rows * across, 4 * lanes), images.dtype)
    four, start_with = maps.reshape(-1), np.concatenate((bias, bias, bias, bias))
    flat = images.reshape(images.shape[0], height * line)
    patch = (tall, stretch, channels, line)
    for n in range(start, stop):
        _copy(flat[n], image)
        for i in range(0, down, rows):
            count = min(rows, down - i) * across
            for window in range(count):
                _copy(start_with, maps[window])
            _convolve_some(four, i, across, count, table, image, patch)
            for window in range(count):
                own, j = i + window // across, window % across
                _largest(four, 4 * lanes * window, lanes, pooled[n, own, j], winners[n, own, j])


@part
def _copy(source, to):
    """A plain loop is many times as fast as an assignment of slices."""
    for t in range(source.shape[0]):
        to[t] = source[t]


@part
def _convolve_some(four, i, across, count, table, image, patch):
    """Add the outputs of some windows, those of ``count // across`` rows of windows from i on."""
    tall, stretch, step, line = patch
    together = max(1, _CACHED // stretch)
    for row in range(0, tall, together):
        weights = table[row * stretch : min(row + together, tall) * stretch]
        for window in range(count):
            corner = (2 * (i + window // across) + row) * line + 2 * (window % across) * step
            first = 4 * table.shape[1] * window
            _convolve(four, first, weights, image, corner, step, line, stretch)


@part
def _convolve(four, first, weights, image, corner, step, line, stretch):
    """Add some rows of the convolution at the four places of a window."""
    lane, lanes = 0, weights.shape[1]
    while lane + 3 * LANES <= lanes:
        sum_three(four, first + lane, weights, lane, image, corner, step, line, stretch)
        lane += 3 * LANES
    while lane < lanes:
        sum_one(four, first + lane, weights, lane, image, corner, step, line, stretch)
        lane += LANES


@part
def _largest(four, first, lanes, pooled, winners):
    """The first of equal ones wins, none where none is positive."""
    a, b = four[first : first + lanes], four[first + lanes : first + 2 * lanes]
    c, d = four[first + 2 * lanes : first + 3 * lanes], four[first + 3 * lanes : first + 4 * lanes]
    for o in range(pooled.shape[0]):
        top, who = a[o], np.uint8(0)
        if b[o] > top:
            top, who = b[o], np.uint8(1)
        if c[o] > top:
            top, who = c[o], np.uint8(2)
        if d[o] > top:
            top, who = d[o], np.uint8(3)
        if top <= 0:
            top, who = np.float32(0), np.uint8(NONE)
        # NaN loses every comparison above, and must not get lost. No "or": that would be a branch.
        if (a[o] != a[o]) | (b[o] != b[o]) | (c[o] != c[o]) | (d[o] != d[o]):
            top = np.float32(np.nan)
        pooled[o], winners[o] = top, who


@jit
def _backward(start, stop, images, kernels, cotangent, winners, gradient):
    """Gradients of some images, and their share of the weight's and the bias's.

    Args:
        start, stop: which images.
        images: (N, H, W, C).
        kernels: (O, tall, stretch filled up to vectors), with zeros where it was filled up.
        cotangent, winners: (N, H', W', O), of the pooled maps.
        gradient: (N, H, W, C), of the images; (0, H, W, C) if it is not needed.

    Returns:
        start, and gradients of the kernels, with garbage where they were filled up, and of the bias.
    """
    _, height, width, channels = images.shape
    line = width * channels
    outputs, tall, filled = kernels.shape
    windows = cotangent.shape[1] * cotangent.shape[2]

    image = np.zeros(height * line + LANES, images.dtype)
    places, values = np.empty(windows + SPARE, np.int64), np.empty(windows + SPARE, images.dtype)
    longest = outputs + SPARE
    lists = (
        np.empty(4 * windows * longest, np.int64),
        np.empty(4 * windows * longest, images.dtype),
        np.empty(4 * windows, np.int64),
    )
    flat = images.reshape(images.shape[0], height * line)
    flat_gradient = gradient.reshape(gradient.shape[0], height * line)
    of_kernels, of_bias = np.zeros(kernels.size, images.dtype), np.zeros(outputs, images.dtype)
    for n in range(start, stop):
        _copy(flat[n], image)
        for o in range(outputs):
            count = _won_by(o, cotangent[n], winners[n], channels, line, places, values)
            for a in range(tall):
                to = (o * tall + a) * filled
                add_rows(of_kernels, to, filled, image, a * line, places, values, 0, count)
            of_bias[o] += values[:count].sum()
        if gradient.size:
            image[:] = 0
            _won_at(cotangent[n], winners[n], tall * filled, longest, lists)
            _send_back(kernels, lists, longest, cotangent.shape[2], channels, line, image)
            _copy(image[:-LANES], flat_gradient[n])
    return start, of_kernels, of_bias


@part
def _won_by(o, cotangent, winners, step, line, places, values):
    """List the windows that an output won: where the winner's patch begins, and the cotangent.

    What it did not win is written too, and then written over.
    """
    height, width, _ = cotangent.shape
    count = 0
    for i in range(height):
        for j in range(width):
            who = np.int64(winners[i, j, o])
            places[count] = (2 * i + (who >> 1)) * line + (2 * j + (who & 1)) * step
            values[count] = cotangent[i, j, o]
            count += who != NONE
    end_list(places, values, count)
    return count


@part
def _won_at(cotangent, winners, size, longest, lists):
    """List for every place of every window the outputs that won there: kernels and cotangents."""
    places, values, counts = lists
    counts[:] = 0
    height, width, outputs = cotangent.shape
    for i in range(height):
        for j in range(width):
            first = 4 * (i * width + j)
            for o in range(outputs):
                who = winners[i, j, o]
                if who != NONE:
                    own = first + who
                    at = own * longest + counts[own]
                    places[at], values[at] = o * size, cotangent[i, j, o]
                    counts[own] += 1
            for own in range(first, first + 4):
                begin, end = own * longest, (own + 1) * longest
                end_list(places[begin:end], values[begin:end], counts[own])


@part
def _send_back(kernels, lists, longest, across, step, line, image):
    """Add to an image's gradient what every patch gets: its winners' cotangents times their kernels."""
    places, values, counts = lists
    _, tall, filled = kernels.shape
    table = kernels.reshape(-1)
    for a in range(tall):
        for own in range(counts.shape[0]):
            if counts[own]:
                window, who = own >> 2, own & 3
                i, j = 2 * (window // across) + (who >> 1), 2 * (window % across) + (who & 1)
                to, begin = (i + a) * line + j * step, own * longest
                add_rows(image, to, filled, table, a * filled, places, values, begin, counts[own])
