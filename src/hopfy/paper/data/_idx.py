"""The idx format of MNIST: a magic number, the sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["read_idx"]

_UNSIGNED_BYTES = 0x08


def read_idx(path: Path) -> Tensor:
    """The array in a gzipped idx file of unsigned bytes.

    Bytes 0 and 1 are zero, byte 2 names the type (8: unsigned bytes), byte 3 the number of
    dimensions; then each size as a big-endian 32-bit integer, then the entries, last index fastest.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"expected a complete gzip file, got a damaged one: {path}.") from None
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTES)):
        raise ValueError(f"expected an idx file of unsigned bytes, got {content[:4]!r} in {path}.")
    start = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(sizes):
        raise ValueError(
            f"expected {math.prod(sizes)} entries for the sizes {sizes}, "
            f"got {len(content) - start} in {path}."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(sizes)
