"""Tensors as bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["pack", "sizes_in_bytes", "unpack"]


def _row_bytes(tensor: Tensor) -> int:
    return tensor.shape[1:].numel() * tensor.element_size()


def sizes_in_bytes(like: Sequence[Tensor], counts: Sequence[int]) -> list[int]:
    """Bytes of each tensor with so many rows, rounded up to whole words."""
    sizes = [_row_bytes(each) * count for each, count in zip(like, counts, strict=True)]
    return [(size + 7) // 8 * 8 for size in sizes]


def pack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The bytes of all tensors, each filled up to whole words."""
    parts = [torch.empty(0, dtype=torch.uint8).to(device)]
    for tensor, room in zip(
        tensors, sizes_in_bytes(tensors, [len(t) for t in tensors]), strict=True
    ):
        if tensor.numel():
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).to(device)
            parts.append(torch.nn.functional.pad(flat, (0, room - flat.numel())))
    return torch.cat(parts)


def unpack(buffer: Tensor, like: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """The tensors that were packed, with so many rows each and otherwise ``like`` these."""
    found, start = [], 0
    for tensor, count, room in zip(like, counts, sizes_in_bytes(like, counts), strict=True):
        raw = buffer[start : start + count * _row_bytes(tensor)].clone()
        shape = (count, *tensor.shape[1:])
        found.append(raw.view(tensor.dtype).reshape(shape).to(tensor.device))
        start += room
    return found
