"""Labeled images."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Images"]


class Images(NamedTuple):
    """``images`` (N, height, width), colored ones (N, 3, height, width), and ``labels`` (N,), int64."""

    images: Tensor
    labels: Tensor
