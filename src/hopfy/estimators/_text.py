"""From texts to numbers: tokens with their places, a vocabulary, padded batches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from hopfy.estimators._training import Batches

__all__ = [
    "PADDING",
    "UNKNOWN",
    "EncodedTexts",
    "SimilarBatches",
    "SimilarLengths",
    "Text",
    "Vocabulary",
    "as_texts",
    "tokenize",
]

PADDING, UNKNOWN = 0, 1

# As the word vectors of Stanford count words: contractions are two ("do n't", "it 's"), hyphens and
# the points of abbreviations and numbers stay inside, other signs stand alone.
_TOKEN = re.compile(
    r"""
    \w+?(?=n['’]t\b) | n['’]t\b | ['’](?:s|re|ve|ll|d|m)\b
    | \d+(?:[.,:/]\d+)+ | (?:[^\W\d_]\.){2,}
    | \w+(?:-\w+)* | \.\.\. | -- | `` | '' | [^\w\s]
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Text:
    """A text as its tokens.

    Attributes:
        tokens: the words and signs, as written.
        source: the text that they come from; None if they were given as a list.
        places: where each token lies in the source: (start, stop).
    """

    tokens: tuple[str, ...]
    source: str | None = None
    places: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


def tokenize(text: str) -> Text:
    """Words, contractions, numbers and signs of ``text``, each with its place.

    >>> tokenize("It isn't well-made (U.S. cut, 1.5 h)!").tokens
    ('It', 'is', "n't", 'well-made', '(', 'U.S.', 'cut', ',', '1.5', 'h', ')', '!')
    """
    found = list(_TOKEN.finditer(text))
    return Text(
        tuple(match.group() for match in found), text, tuple(match.span() for match in found)
    )


def as_texts(texts: object) -> list[Text]:
    """Texts from strings (which are tokenized) or lists of tokens, mixed as one likes."""
    if isinstance(texts, str | bytes):
        raise TypeError("expected a list of texts, got a single string; put it into a list.")
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | set | frozenset):
        raise TypeError(
            f"expected a list of texts (strings or lists of tokens), got {type(texts).__name__}."
        )
    return [_as_text(text, number) for number, text in enumerate(texts)]


def _as_text(text: object, number: int) -> Text:
    if isinstance(text, Text):
        return text
    if isinstance(text, str):
        return tokenize(text)
    if isinstance(text, list | tuple | np.ndarray):
        wrong = next((token for token in text if not isinstance(token, str)), None)
        if wrong is None:
            return Text(tuple(str(token) for token in text))
        raise TypeError(
            "expected every text to be a string or a list of strings, got a token of type "
            f"{type(wrong).__name__} in text {number}."
        )
    raise TypeError(
        f"expected every text to be a string or a list of strings, got {type(text).__name__} "
        f"({str(text)[:40]}) as text {number}; replace what is missing by an empty string."
    )


class Vocabulary:
    """Numbers of words: 0 is padding, 1 every unknown word, the words follow in order.

    Args:
        words: without repetition.
        lowercase: whether capital letters make no difference.

    >>> Vocabulary(["good", "film"]).encode(["Good", "old", "film"])
    array([2, 1, 3])
    """

    def __init__(self, words: Iterable[str], *, lowercase: bool = True) -> None:
        self.words, self.lowercase = tuple(words), lowercase
        self._numbers = {word: number for number, word in enumerate(self.words, 2)}
        if len(self._numbers) != len(self.words):
            raise ValueError(
                f"expected words without repetition, got {len(self.words)} with "
                f"{len(self._numbers)} different ones among them."
            )

    @classmethod
    def of(cls, texts: Iterable[Text], *, min_count: int = 1, lowercase: bool = True) -> Vocabulary:
        """The words that occur at least ``min_count`` times, the most frequent first."""
        counts = Counter(word for text in texts for word in normalized(text.tokens, lowercase))
        words = [word for word, count in counts.most_common() if count >= min_count]
        return cls(words, lowercase=lowercase)

    def __len__(self) -> int:
        """How many numbers there are, with those of padding and unknown words."""
        return len(self.words) + 2

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    def encode(self, tokens: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers (length,) of the tokens."""
        number = self._numbers.get
        words = normalized(tokens, self.lowercase)
        return np.fromiter((number(word, UNKNOWN) for word in words), np.int64, len(tokens))


def normalized(tokens: Iterable[str], lowercase: bool) -> Iterable[str]:
    """Tokens as a vocabulary spells them: straight apostrophes, small letters if wanted."""
    straight = (token.replace("’", "'") for token in tokens)
    return (token.lower() for token in straight) if lowercase else straight


class EncodedTexts:
    """Texts as numbers, which come in padded batches.

    >>> texts = EncodedTexts([np.array([5, 2, 3]), np.array([4])])
    >>> texts.batch([0, 1])["ids"]
    tensor([[5, 2, 3],
            [4, 0, 0]])
    """

    def __init__(self, texts: Sequence[np.ndarray[Any, Any]]) -> None:
        self.lengths = np.array([len(text) for text in texts], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._ids = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *texts]))

    @classmethod
    def of(cls, texts: Iterable[Text], vocabulary: Vocabulary) -> EncodedTexts:
        """The texts in the numbers of a vocabulary."""
        return cls([vocabulary.encode(text.tokens) for text in texts])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Tensor:
        return self._ids[self._starts[number] : self._starts[number + 1]]

    def batch(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """``ids`` (B, L), padded with 0 to the longest of these texts, and ``lengths`` (B,)."""
        lengths = self.lengths[list(numbers)]
        ids = torch.full((len(numbers), max(1, lengths.max(initial=0))), PADDING)
        for row, number in enumerate(numbers):
            ids[row, : lengths[row]] = self[number]
        return {"ids": ids, "lengths": torch.from_numpy(lengths)}

    def known(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many known words each text has."""
        words = np.concatenate([[0], np.cumsum((self._ids > UNKNOWN).numpy())])
        return words[self._starts[1:]] - words[self._starts[:-1]]  # type: ignore[no-any-return]

    def by_length(self, longest: int) -> list[list[int]]:
        """Batches of similar lengths, each of at most ``longest`` numbers with its padding."""
        batches: list[list[int]] = []
        for number in np.argsort(self.lengths, kind="stable").tolist():
            length = max(1, int(self.lengths[number]))  # ascending: the longest of its batch
            if batches and (len(batches[-1]) + 1) * length <= longest:
                batches[-1].append(number)
            else:
                batches.append([number])
        return batches


class SimilarLengths(Sampler[int]):
    """A random order in which the texts of a batch have similar lengths, so that little is padding.

    Texts are shuffled, sorted by length within pools of ``pool`` batches, and the batches shuffled.

    Args:
        lengths: of the texts.
        batch_size: texts in a batch.
        pool: with more batches in a pool there is less padding and less chance.
    """

    def __init__(self, lengths: np.ndarray[Any, Any], batch_size: int, *, pool: int = 50) -> None:
        self.lengths, self.batch_size, self.pool = torch.as_tensor(lengths), batch_size, pool

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        batches: list[Tensor] = []
        for pool in torch.randperm(len(self)).split(self.batch_size * self.pool):  # type: ignore[no-untyped-call]
            ordered = pool[self.lengths[pool].argsort(stable=True)]
            batches.extend(ordered.split(self.batch_size))
        # A batch that is not full ends the order: elsewhere it would shift all that follow.
        full = [batch for batch in batches if len(batch) == self.batch_size]
        rest = [batch for batch in batches if len(batch) < self.batch_size]
        for number in torch.randperm(len(full)).tolist():
            yield from full[number].tolist()
        for batch in rest:
            yield from batch.tolist()


class SimilarBatches(Batches):
    """The batches of `SimilarLengths`; those of very long texts in parts.

    Args:
        lengths: of the texts.
        batch_size: texts in a batch.
        most: words of a batch with its padding, unless a single text has more.
    """

    def __init__(self, lengths: np.ndarray[Any, Any], batch_size: int, most: int) -> None:
        self._order, self._most = SimilarLengths(lengths, batch_size), most

    def __iter__(self) -> Iterator[list[int]]:
        order, size = list(self._order), self._order.batch_size
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            longest = max(1, int(self._order.lengths[batch].max()))
            part = max(1, self._most // longest)
            for first in range(0, len(batch), part):
                yield batch[first : first + part]
