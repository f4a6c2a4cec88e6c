"""MNIST: 70,000 handwritten digits of 28 x 28 pixels."""

from __future__ import annotations

from typing import Literal

import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._idx import read_idx
from hopfy.paper.data._images import Images

__all__ = ["MNIST", "mnist"]

MNIST = Dataset(
    name="mnist",
    title="handwritten digits, 60,000 + 10,000 images of 28 x 28 pixels",
    files=(
        RemoteFile(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        RemoteFile(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        RemoteFile(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        RemoteFile(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
)

_PREFIX = {"train": "train", "test": "t10k"}


def mnist(split: Literal["train", "test"] = "train") -> Images:
    """The training (60,000) or the test images (10,000), (N, 28, 28) uint8, and their labels."""
    if split not in _PREFIX:
        raise ValueError(f"expected split to be 'train' or 'test', got {split!r}.")
    images = read_idx(MNIST.path(f"{_PREFIX[split]}-images-idx3-ubyte.gz"))
    labels = read_idx(MNIST.path(f"{_PREFIX[split]}-labels-idx1-ubyte.gz"))
    return Images(images, labels.to(torch.int64))
