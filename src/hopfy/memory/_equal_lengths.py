r"""One more coordinate that puts every pattern on the same sphere.

Inner products favor long patterns: where :math:`\|x_j\| > \|x_i\|`, the separation
:math:`\Delta_i = x_i^\top x_i - \max_j x_i^\top x_j` may be negative, and then no beta makes
:math:`x_i` a fixed point. The lifted patterns
:math:`\tilde x_i = (x_i, \sqrt{R^2 - \|x_i\|^2})` all have length R, so that

.. math:: \tilde\Delta_i = \tfrac12 \min_j \|\tilde x_i - \tilde x_j\|^2
          \ge \tfrac12 \min_j \|x_i - x_j\|^2 ,

which is positive for every pattern that was stored once. Nothing of the pattern is lost: its own
coordinates are untouched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.memory._blocks import light_blocks

__all__ = ["lifted", "radius_for", "squared_lengths"]


def squared_lengths(rows: Tensor) -> Tensor:
    """Squared lengths (N,) in float64, a block of rows at a time.

    The answer is laid out first: pieces kept between large temporary blocks fragment the heap.
    """
    lengths = torch.empty(rows.shape[0], dtype=torch.float64, device=rows.device)
    start = 0
    for block in light_blocks(rows):
        lengths[start : start + len(block)] = block.double().square().sum(-1)
        start += len(block)
    return lengths


def radius_for(lengths: Tensor, radius: float) -> float:
    """``radius`` if it covers these squared lengths, otherwise one with room for twice as much.

    The room makes the sphere grow, and all rows move, only a logarithmic number of times.
    """
    longest = float(lengths.max()) if lengths.numel() else 0.0
    if radius > 0 and longest <= radius**2:
        return radius
    return float((2 * longest) ** 0.5) if longest > 0 else max(radius, 1.0)


def lifted(patterns: Tensor, lengths: Tensor, radius: float) -> Tensor:
    """The patterns (N, D) with the coordinate that completes each to length ``radius``.

    ``lengths`` (N,) are the patterns' squared lengths in float64.
    """
    rest = (radius**2 - lengths).clamp_min(0).sqrt()
    return torch.cat([patterns, rest.to(patterns.dtype).unsqueeze(1)], dim=1)
