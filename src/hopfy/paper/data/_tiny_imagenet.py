"""Tiny ImageNet: 110,000 labeled color images of 64 x 64 pixels in 200 classes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._images import Images

__all__ = ["TINY_IMAGENET", "read_tiny_imagenet", "tiny_imagenet"]

_ARCHIVE = "tiny-imagenet-200.zip"
TINY_IMAGENET = Dataset(
    name="tiny_imagenet",
    title="color images of 200 kinds of things, 100,000 + 10,000 of 64 x 64 pixels",
    files=(
        RemoteFile(
            _ARCHIVE,
            248_100_043,
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        ),
    ),
    mirrors=("https://cs231n.stanford.edu",),
)
_SPLITS = ("train", "validation")
_SIZE = 64


def tiny_imagenet(
    split: Literal["train", "validation"] = "train", per_class: int | None = None
) -> Images:
    """Images (N, 3, 64, 64) uint8 and their labels, numbers of the classes in the set's own order.

    The published test images have no labels, so they are left out.

    Args:
        split: 500 training or 50 validation images of every class.
        per_class: only the first ones of each class; None for all, 1.2 GB for training.
    """
    if split not in _SPLITS:
        raise ValueError(f"expected split to be 'train' or 'validation', got {split!r}.")
    return read_tiny_imagenet(TINY_IMAGENET.path(_ARCHIVE), split, per_class)


def read_tiny_imagenet(archive: Path, split: str, per_class: int | None = None) -> Images:
    """The images of a split in the archive, as it was published."""
    try:
        with zipfile.ZipFile(archive) as file:
            root = _root(file, archive)
            classes = file.read(f"{root}/wnids.txt").decode().split()
            listed = _training(file, root) if split == "train" else _validation(file, root)
            labels, names = _first_of_each(listed, classes, per_class)
            pixels = [_pixels(file.read(name), name) for name in names]
    except (KeyError, OSError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise ValueError(f"expected the archive of Tiny ImageNet in {archive}: {error}.") from None
    images = torch.stack(pixels) if pixels else torch.empty(0, 3, _SIZE, _SIZE, dtype=torch.uint8)
    return Images(images, torch.tensor(labels, dtype=torch.int64))


def _root(file: zipfile.ZipFile, archive: Path) -> str:
    for name in file.namelist():
        if PurePosixPath(name).name == "wnids.txt":
            return str(PurePosixPath(name).parent)
    raise ValueError(f"expected wnids.txt, the list of classes, in {archive}, got none.")


def _training(file: zipfile.ZipFile, root: str) -> list[tuple[str, str]]:
    """Class and name of every image; they lie in ``train/CLASS/images``."""
    names = (name for name in file.namelist() if name.startswith(f"{root}/train/"))
    return [(PurePosixPath(n).parts[-3], n) for n in names if n.upper().endswith(".JPEG")]


def _validation(file: zipfile.ZipFile, root: str) -> list[tuple[str, str]]:
    """The same; a table says which image is of which class."""
    table = file.read(f"{root}/val/val_annotations.txt").decode()
    rows = (line.split("\t") for line in table.splitlines())
    return [(row[1], f"{root}/val/images/{row[0]}") for row in rows if len(row) > 1]


def _first_of_each(
    listed: list[tuple[str, str]], classes: list[str], per_class: int | None
) -> tuple[list[int], list[str]]:
    """Labels and names, class by class, ``per_class`` of each."""
    by_class: dict[str, list[str]] = {name: [] for name in classes}
    for kind, name in listed:
        if kind not in by_class:
            raise ValueError(f"expected images of the classes in wnids.txt, got one of {kind!r}.")
        by_class[kind].append(name)
    chosen = {kind: names[:per_class] for kind, names in by_class.items()}
    labels = [number for number, kind in enumerate(classes) for _ in chosen[kind]]
    return labels, [name for kind in classes for name in chosen[kind]]


def _pixels(content: bytes, name: str) -> Tensor:
    image = _pillow().open(io.BytesIO(content)).convert("RGB")
    if image.size != (_SIZE, _SIZE):
        raise ValueError(f"expected {name} of {_SIZE} x {_SIZE} pixels, got {image.size}.")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("this needs Pillow: pip install 'hopfy[experiments]'.") from None
    return Image
