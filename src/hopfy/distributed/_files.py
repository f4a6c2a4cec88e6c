"""Reading each process's part of memories that lie in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["read_shard", "share"]


def share(total: int, rank: int, size: int) -> tuple[int, int]:
    """The rows ``first .. stop`` of process ``rank`` when ``total`` rows are shared out evenly.

    >>> [share(10, rank, 4) for rank in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return total * rank // size, total * (rank + 1) // size


def read_shard(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str], rank: int, size: int
) -> Tensor:
    """The rows of process ``rank`` from all files one after the other."""
    names = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not names:
        raise ValueError("expected at least one file of memories, got none.")
    opened = [_open(Path(name)) for name in names]
    widths = {(columns, dtype) for _, columns, dtype, _ in opened}
    if len(widths) > 1:
        raise ValueError(
            f"expected files whose rows have one length and dtype, got {sorted(map(str, widths))}."
        )
    first, stop = share(sum(rows for rows, *_ in opened), rank, size)
    parts, start = [], 0
    for rows, _, _, read in opened:
        low, high = max(first - start, 0), min(stop - start, rows)
        if low < high:
            parts.append(read(low, high))
        start += rows
    _, columns, dtype, _ = opened[0]
    return torch.cat(parts) if parts else torch.empty(0, columns, dtype=dtype)


Opened = tuple[int, int, torch.dtype, Callable[[int, int], Tensor]]


def _open(path: Path) -> Opened:
    """The shape and dtype of a file's memories, and how to read some of its rows."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a file of memories, got {str(path)!r}, which is none.")
    opened = _open_numpy(path) if path.suffix == ".npy" else _open_safetensors(path)
    if not opened[2].is_floating_point:
        raise ValueError(f"expected floating memories in {str(path)!r}, got {opened[2]}.")
    return opened


def _open_numpy(path: Path) -> Opened:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    _check_shape(path, array.shape)
    dtype = torch.from_numpy(np.zeros(0, array.dtype)).dtype
    return (*array.shape, dtype, lambda low, high: torch.from_numpy(np.array(array[low:high])))


def _open_safetensors(path: Path) -> Opened:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"expected a safetensors file, got {str(path)!r}: {error}.") from None
    names: list[str] = list(file.keys())  # type: ignore[no-untyped-call]
    name = "memories" if "memories" in names else names[0] if len(names) == 1 else None
    if name is None:
        raise ValueError(
            f"expected a tensor named 'memories' in {str(path)!r}, got {sorted(names)}."
        )
    rows = file.get_slice(name)  # type: ignore[no-untyped-call]
    shape = tuple(rows.get_shape())
    _check_shape(path, shape)
    return (*shape, rows[:0].dtype, lambda low, high: rows[low:high])


def _check_shape(path: Path, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise ValueError(f"expected memories (N, D) in {str(path)!r}, got shape {shape}.")
