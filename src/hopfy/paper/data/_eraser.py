"""ERASER's film reviews: whole reviews in which people marked the reasons for the verdict."""

from __future__ import annotations

import tarfile
import zlib
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._texts import AnnotatedTexts, json_lines

__all__ = ["ERASER_MOVIES", "eraser_movies"]

ERASER_MOVIES = Dataset(
    name="eraser_movies",
    title="film reviews with human rationales, 1,600 + 200 + 199",
    files=(
        RemoteFile(
            "docs.tar.gz",
            3_103_689,
            "400e8cec98b67528d101d0db5d48666b4916f77fbada7b5860b0d09a65edd72a",
        ),
        RemoteFile(
            "train.jsonl.gz",
            443_885,
            "837abcbb864258d72240111752090688c92cb755e169353d6984042a45d2ade5",
        ),
        RemoteFile(
            "val.jsonl.gz",
            45_574,
            "d6e0afe5e32e221e167772a01be60db9238d2ab21e99abecc875b0353fd93b31",
        ),
        RemoteFile(
            "test.jsonl.gz",
            124_270,
            "0f64837ce9b6722a9746f39b86dd04c514400c0138d6897e1bf66e8fb272824b",
        ),
    ),
    source=(
        "unpack http://www.eraserbenchmark.com/zipped/movies.tar.gz, gzip its three jsonl files "
        "and pack its documents as docs.tar.gz"
    ),
    why="it is published as one archive, whose files have to be packed one by one",
)

_FILE = {"train": "train.jsonl.gz", "validation": "val.jsonl.gz", "test": "test.jsonl.gz"}
_LABEL = {"NEG": 0, "POS": 1}


def eraser_movies(split: Literal["train", "validation", "test"] = "train") -> AnnotatedTexts:
    """Tokens, a label (1 for positive) and the marked spans of 1,600, 200 or 199 reviews.

    The marks of the test set are meant to be complete; those of the other two sets need not be.
    """
    if split not in _FILE:
        raise ValueError(f"expected split among {', '.join(_FILE)}, got {split!r}.")
    documents = _documents(ERASER_MOVIES.path("docs.tar.gz"))
    texts, labels, spans = [], [], []
    keys = ["annotation_id", "classification", "evidences"]
    for record in json_lines(ERASER_MOVIES.path(_FILE[split]), keys):
        texts.append(documents[record["annotation_id"]])
        labels.append(_LABEL[record["classification"]])
        marks = [mark for group in record["evidences"] for mark in group]
        spans.append(sorted({(mark["start_token"], mark["end_token"]) for mark in marks}))
    return AnnotatedTexts([list(text) for text in texts], torch.tensor(labels), spans)


@cache
def _documents(path: Path) -> dict[str, tuple[str, ...]]:
    """The tokens of every document, by its name; nothing is unpacked to disk."""
    found = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    found[Path(member.name).name] = tuple(content.read().decode("utf-8").split())
    except (EOFError, tarfile.TarError, zlib.error):
        raise ValueError(f"expected a complete tar.gz file, got a damaged one: {path}.") from None
    return found
