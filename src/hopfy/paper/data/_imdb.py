"""IMDB: whole film reviews, positive or negative."""

from __future__ import annotations

from typing import Literal

import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._texts import Texts, json_lines

__all__ = ["IMDB", "imdb"]

IMDB = Dataset(
    name="imdb",
    title="film reviews, 25,000 + 25,000",
    files=(
        RemoteFile(
            "train.jsonl.gz",
            13_051_289,
            "21d35845093d33f17f10a9e02552e45d6d882bc24445911d70b7b88b5b8f4880",
        ),
        RemoteFile(
            "test.jsonl.gz",
            12_746_067,
            "995908e4e83c471c8d8c06c101cd066082bff277afe905ca401876c7fdd8730d",
        ),
    ),
    source=(
        "the reviews are those of https://ai.stanford.edu/~amaas/data/sentiment (Maas et al. "
        "2011), one JSON object with label, id, rating and text in each line, sorted by label and id"
    ),
    why="it is published as one archive of 100,000 small files, which have to be joined",
)

_SPLITS = ("train", "test")


def imdb(split: Literal["train", "test"] = "train") -> Texts:
    """Reviews and a label, 1 for positive. Line breaks (``<br />``) become blanks."""
    if split not in _SPLITS:
        raise ValueError(f"expected split among {', '.join(_SPLITS)}, got {split!r}.")
    records = list(json_lines(IMDB.path(f"{split}.jsonl.gz"), ["text", "label"]))
    labels = torch.tensor([int(record["label"]) for record in records])
    return Texts([record["text"].replace("<br />", " ") for record in records], labels)
