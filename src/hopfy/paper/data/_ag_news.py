"""AG's news: four topics."""

from __future__ import annotations

import csv
import re
from typing import Literal

import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._texts import Texts, json_lines, lines

__all__ = ["AG_NEWS", "ag_news"]

AG_NEWS = Dataset(
    name="ag_news",
    title="news of four topics, 20,388 of the 120,000 training texts and all 7,600 of the test set",
    files=(
        RemoteFile(
            "train_subset.jsonl.gz",
            2_140_404,
            "2e0fe040b258c4b2af60de15f3b5afdd4ddd7762e09a88485428f8c6f2f3be9e",
        ),
        RemoteFile(
            "test.csv.gz",
            748_824,
            "3c277beb6ce3dd635407635cb90a7c5ceaf87168fabb3be218e39aa2b097f706",
        ),
        RemoteFile(
            "classes.txt",
            31,
            "612dbfa932f07a6ed837295a7d5746ce7412e7bb4bc32ba919fdb3cda3a1b9b5",
        ),
    ),
    source=(
        "the texts are a share of AG's corpus of news articles (Zhang, Zhao & LeCun, 2015), one JSON "
        "object with a label from 0 to 3 and a text in each line"
    ),
    why="no address serves these files: they are a selection, and the corpus is for non-commercial use",
)

_SPLITS = ("train", "test")
_ENTITY = re.compile(r"&lt;.*?&gt;|#\d+;|\b(?:quot|amp|lt|gt|nbsp);")


def ag_news(split: Literal["train", "test"] = "train") -> Texts:
    """Title and description in one text, and the topic: world, sports, business, science.

    The training set has 20,388 of the 120,000 published texts, the test set all 7,600. What is
    left of HTML (``#39;``, ``quot;``, tags) becomes a blank.
    """
    if split not in _SPLITS:
        raise ValueError(f"expected split among {', '.join(_SPLITS)}, got {split!r}.")
    if split == "train":
        path = AG_NEWS.path("train_subset.jsonl.gz")
        found = [
            (record["text"], record["label"]) for record in json_lines(path, ["text", "label"])
        ]
    else:
        rows = csv.reader(lines(AG_NEWS.path("test.csv.gz")))
        found = [(f"{title} . {text}", int(label) - 1) for label, title, text in rows]
    labels = torch.tensor([label for _, label in found])
    return Texts([_ENTITY.sub(" ", text).replace("\\", " ") for text, _ in found], labels)
