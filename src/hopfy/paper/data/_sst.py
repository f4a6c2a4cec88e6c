"""The Stanford Sentiment Treebank: sentences from film reviews, positive or negative."""

from __future__ import annotations

import re
from typing import Literal

import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._texts import Texts, lines

__all__ = ["SST", "read_tree", "sst"]

SST = Dataset(
    name="sst",
    title="Stanford Sentiment Treebank, 8,544 + 1,101 + 2,210 sentences with their trees",
    files=(
        RemoteFile(
            "train.txt.gz",
            567_105,
            "479b7122325a64e3783c9382eafebcac3308862dbc2b77cae4ff7acfd751defc",
            "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7",
        ),
        RemoteFile(
            "dev.txt.gz",
            74_467,
            "83088b1d776a127c06c14bce4acddfe2e6d318f538e2abbb5c9e772f96a8601b",
            "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40",
        ),
        RemoteFile(
            "test.txt.gz",
            147_988,
            "65b9da00aa0e8107f3e3bf2f620e773457102b1828950ccb12931c103c01afdb",
            "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761",
        ),
    ),
    source=(
        "unpack https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip, gzip its three files"
    ),
    why="it is published as one archive, whose files have to be packed one by one",
)

_FILE = {"train": "train.txt.gz", "validation": "dev.txt.gz", "test": "test.txt.gz"}
_LEAF = re.compile(r"\(\d ([^()]+)\)")
_NEUTRAL = 2
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def sst(split: Literal["train", "validation", "test"] = "train") -> Texts:
    """Tokens and a label, 1 for positive, of the sentences that are not neutral.

    The training set has 6,920 of them, the validation set 872 and the test set 1,821.
    """
    if split not in _FILE:
        raise ValueError(f"expected split among {', '.join(_FILE)}, got {split!r}.")
    read = [read_tree(line) for line in lines(SST.path(_FILE[split])) if line]
    kept = [(tokens, label) for tokens, label in read if label != _NEUTRAL]
    labels = [int(label > _NEUTRAL) for _, label in kept]
    return Texts([tokens for tokens, _ in kept], torch.tensor(labels))


def read_tree(line: str) -> tuple[list[str], int]:
    """The tokens of a tree and the label of its root, 0 (very negative) to 4 (very positive).

    >>> read_tree("(3 (2 Quite) (3 (3 good) (2 -LRB-)))")
    (['Quite', 'good', '('], 3)
    """
    tokens = _LEAF.findall(line)
    if not re.match(r"\([0-4] ", line) or not tokens:
        raise ValueError(f"expected a tree such as '(3 (2 Quite) (3 good))', got {line[:60]!r}.")
    return [_BRACKETS.get(token, token).replace("\\/", "/") for token in tokens], int(line[1])
