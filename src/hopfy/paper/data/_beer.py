"""BeerAdvocate: reviews of beers with a score for each aspect, some with marked reasons."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from hopfy.paper.data._files import Dataset, RemoteFile
from hopfy.paper.data._texts import AnnotatedTexts, Texts, json_lines, lines

__all__ = ["BEER", "Aspect", "beer", "beer_annotations"]

BEER = Dataset(
    name="beer",
    title="beer reviews, 10,000 held-out ones of the appearance subset",
    files=(
        RemoteFile(
            "reviews.aspect0.heldout.txt.gz",
            2_680_192,
            "c1cdef0b9e3b08eceb4dd57d87787b6523b3ddae39da9f9977a32f5c288393dd",
        ),
    ),
    source="the file is part of the data of Lei, Barzilay and Jaakkola (2016)",
    why="the owner of the reviews asked that they no longer be offered for download",
)

Aspect = Literal["appearance", "aroma", "palate", "taste", "overall"]


def beer(aspect: Aspect = "appearance") -> Texts:
    """Tokens of 10,000 reviews and their score for ``aspect``, in [0, 1] (float32)."""
    number = _number(aspect)
    texts, scores = [], []
    for line in lines(BEER.path("reviews.aspect0.heldout.txt.gz")):
        numbers, _, text = line.partition("\t")
        texts.append(text.split())
        scores.append(float(numbers.split()[number]))
    return Texts(texts, torch.tensor(scores))


def beer_annotations(path: str | os.PathLike[str], aspect: Aspect = "appearance") -> AnnotatedTexts:
    """The annotated reviews of McAuley et al. (2012), from a file ``annotations.json``.

    Each line is an object with the tokens ``x``, the five scores ``y`` in [0, 1], and for every
    aspect, under its number ``"0"`` to ``"4"``, the spans (first token, token after the last) that
    a person marked. The published file has 994 reviews, 2,314,369 bytes and the SHA-256
    ``bb7bc1746bd133ce96be4bd46c2d6eaf265ef4a93b9dee3daf363e7c378a13b0``.
    """
    number = _number(aspect)
    texts, scores, spans = [], [], []
    for place, record in enumerate(json_lines(Path(path), ["x", "y", str(number)]), 1):
        try:
            tokens, score, marked = _annotated(record, number)
        except (TypeError, ValueError, IndexError):
            raise ValueError(
                f"expected tokens x, five scores y and spans {str(number)!r} inside the tokens, "
                f"got something else in line {place} of {path}."
            ) from None
        texts.append(tokens)
        scores.append(score)
        spans.append(marked)
    return AnnotatedTexts(texts, torch.tensor(scores), spans)


def _annotated(
    record: Mapping[str, Any], number: int
) -> tuple[list[str], float, list[tuple[int, int]]]:
    tokens = [str(token) for token in record["x"]]
    spans = sorted((int(start), int(stop)) for start, stop in record[str(number)])
    if any(not 0 <= start < stop <= len(tokens) for start, stop in spans):
        raise ValueError
    return tokens, float(record["y"][number]), spans


def _number(aspect: str) -> int:
    aspects: tuple[str, ...] = get_args(Aspect)
    if aspect not in aspects:
        raise ValueError(f"expected aspect among {', '.join(aspects)}, got {aspect!r}.")
    return aspects.index(aspect)
