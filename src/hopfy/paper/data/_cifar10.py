"""CIFAR-10: 60,000 color images of 32 x 32 pixels in ten classes."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._images import Images

__all__ = ["CIFAR10", "cifar10", "read_cifar10"]

_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10 = Dataset(
    name="cifar10",
    title="color images of ten kinds of things, 50,000 + 10,000 of 32 x 32 pixels",
    files=(
        RemoteFile(
            _ARCHIVE,
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    mirrors=("https://www.cs.toronto.edu/~kriz",),
)
_MEMBERS = {
    "train": [f"data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["test_batch.bin"],
}
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32


def cifar10(split: Literal["train", "test"] = "train") -> Images:
    """The training (50,000) or the test images (10,000), (N, 3, 32, 32) uint8, and their labels."""
    if split not in _MEMBERS:
        raise ValueError(f"expected split to be 'train' or 'test', got {split!r}.")
    return read_cifar10(CIFAR10.path(_ARCHIVE), _MEMBERS[split])


def read_cifar10(archive: Path, members: list[str]) -> Images:
    """The images in some files of the binary archive.

    A record is a byte with the label and 3,072 bytes of pixels: the red ones row by row, then the
    green and the blue ones.
    """
    try:
        with tarfile.open(archive) as file:
            contents = {
                Path(entry.name).name: file.extractfile(entry).read()  # type: ignore[union-attr]
                for entry in file
                if entry.isfile() and Path(entry.name).name in members
            }
    except (EOFError, OSError, tarfile.TarError):
        raise ValueError(
            f"expected a complete tar archive, got a damaged one: {archive}."
        ) from None
    missing = [name for name in members if name not in contents]
    if missing:
        raise ValueError(f"expected {missing[0]} in {archive}, got none.")
    records = torch.cat([_records(contents[name], name) for name in members])
    return Images(records[:, 1:].reshape(-1, *_SHAPE), records[:, 0].long())


def _records(content: bytes, name: str) -> Tensor:
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"expected records of {_RECORD} bytes in {name}, got {len(content)} bytes."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _RECORD)
