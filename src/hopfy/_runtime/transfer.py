"""Tensors on their way between a GPU and the CPU, for maps that only the CPU computes.

Copies go through pinned memory and do not wait for each other: all inputs of a call come with one wait,
and its answer goes back while the host goes on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["to_device_of", "to_host"]

_ASYNCHRONOUS: tuple[str, ...] = ("cuda", "xpu")


def to_host(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU in their own dtypes, detached: all copies at once, then one wait."""
    found, device = [], None
    for tensor in tensors:
        here = tensor.detach()
        if here.device.type in _ASYNCHRONOUS:
            device = here.device
            found.append(_pinned(here.shape, here.dtype).copy_(here, non_blocking=True))
        else:
            found.append(here.cpu())
    if device is not None:
        _wait_for(device)
    return found


def to_device_of(like: Tensor, found: Tensor, copy: bool = False) -> Tensor:
    """What the CPU found, with the device and dtype of ``like``; the host does not wait.

    ``copy`` if the memory must not be shared where nothing has to be moved.
    """
    if like.device.type not in _ASYNCHRONOUS:
        return found.to(like, copy=copy)
    return _pinned(found.shape, like.dtype).copy_(found).to(like.device, non_blocking=True)


def _pinned(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Memory of the host that a GPU reads and writes by itself."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def _wait_for(device: torch.device) -> None:
    """Until everything that was asked of the current stream is done."""
    streams: Any = getattr(torch, device.type)
    streams.current_stream(device).synchronize()
