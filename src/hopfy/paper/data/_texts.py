"""Labeled texts, and texts in which people marked what matters."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["AnnotatedTexts", "Texts", "json_lines", "lines"]


class Texts(NamedTuple):
    """``texts``, whole strings or lists of tokens, as published, and ``labels`` (N,).

    Labels are int64 classes, or float32 numbers where the task is a regression.
    """

    texts: Sequence[str] | Sequence[list[str]]
    labels: Tensor


class AnnotatedTexts(NamedTuple):
    """Texts as tokens, labels, and the spans that a person marked as reasons for the label.

    ``spans[i]`` has a pair (first token, token after the last) for each mark in text i, in order;
    marks may overlap.
    """

    texts: list[list[str]]
    labels: Tensor
    spans: list[list[tuple[int, int]]]


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file in UTF-8, gzipped if its name says so, without their ends."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                yield line.decode("utf-8").rstrip("\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"expected a complete gzip file, got a damaged one: {path}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"expected text in UTF-8, got other bytes in {path}.") from None


def json_lines(path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file with one JSON object in each line, all of which have ``keys``."""
    for number, line in enumerate(lines(path), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not set(keys) <= record.keys():
            raise ValueError(
                f"expected a JSON object with {', '.join(keys)} in line {number} of {path}, "
                f"got {line[:60]!r}."
            )
        yield record
