"""The texts of every task: training, validation and test sets as tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from hopfy.estimators import Text, as_texts
from hopfy.paper import data
from hopfy.paper.data import AnnotatedTexts, Texts
from hopfy.paper.rationale._task import Task

__all__ = ["PLANTED", "Corpus", "Part", "checksum", "is_here", "load"]

PLANTED = "planted"
"""Texts made here: always at hand."""

_HELD_OUT = 0.1
Spans = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Part:
    """Texts, their labels (N,), and the spans of words that people marked in them, if known."""

    texts: list[Text]
    labels: Tensor
    spans: Spans | None = None

    def take(self, numbers: Sequence[int]) -> Part:
        spans = None if self.spans is None else [self.spans[number] for number in numbers]
        return Part([self.texts[number] for number in numbers], self.labels[list(numbers)], spans)

    def draw(self, count: int, seed: int) -> Part:
        """``count`` of them at random, all if it is 0 or too many."""
        if not 0 < count < len(self.texts):
            return self
        return self.take(_shuffled(len(self.texts), seed)[:count])

    def last_words(self, longest: int) -> Part:
        """Every text from its last ``longest`` words; what was marked before them is lost."""
        if not longest:
            return self
        starts = [max(0, len(text) - longest) for text in self.texts]
        texts = [Text(text.tokens[start:]) for text, start in zip(self.texts, starts, strict=True)]
        spans = None
        if self.spans is not None:
            moved = zip(self.spans, starts, strict=True)
            spans = [
                [(max(0, a - start), b - start) for a, b in marks if b > start]
                for marks, start in moved
            ]
        return Part(texts, self.labels, spans)


@dataclass(frozen=True)
class Corpus:
    """All that a method is trained and tested on."""

    training: Part
    validation: Part
    test: Part

    @property
    def numbers(self) -> bool:
        """Whether the labels are numbers to predict, not classes."""
        return self.training.labels.is_floating_point()

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All different words in the spelling of word vectors."""
        parts = (self.training, self.validation, self.test)
        tokens = {token for part in parts for text in part.texts for token in text.tokens}
        return tuple(sorted({token.replace("’", "'").lower() for token in tokens}))


@lru_cache(maxsize=1)
def load(task: Task, seed: int) -> Corpus:
    """The texts of a task; the seed draws those that are used, and those held out."""
    sets = [part.last_words(task.longest) for part in _SOURCES[task.data](seed)]
    training, validation, test = sets
    return Corpus(
        training.draw(task.training, seed),
        validation.draw(task.training, seed),
        test.draw(task.test, seed),
    )


def is_here(task: Task) -> bool:
    """Whether the texts need no download."""
    return task.data == PLANTED or data.dataset(task.data).where() is not None


def checksum(task: Task) -> str:
    """Identifies the texts."""
    return PLANTED if task.data == PLANTED else data.dataset(task.data).checksum


def _shuffled(count: int, seed: int) -> list[int]:
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order


def _raw(texts: Texts | AnnotatedTexts) -> Part:
    """As tokens, each word held once: there are millions of them."""
    spans = texts.spans if isinstance(texts, AnnotatedTexts) else None
    whole = [Text(tuple(map(sys.intern, as_texts([text])[0].tokens))) for text in texts.texts]
    return Part(whole, texts.labels, spans)


def _hold_out(texts: Part, seed: int) -> tuple[Part, Part]:
    """Training and validation texts."""
    order = _shuffled(len(texts.texts), seed)
    held = round(_HELD_OUT * len(order))
    return texts.take(order[held:]), texts.take(order[:held])


def _sst(seed: int) -> tuple[Part, Part, Part]:
    return _raw(data.sst("train")), _raw(data.sst("validation")), _raw(data.sst("test"))


def _eraser(seed: int) -> tuple[Part, Part, Part]:
    parts = (data.eraser_movies("train"), data.eraser_movies("validation"))
    return _raw(parts[0]), _raw(parts[1]), _raw(data.eraser_movies("test"))


def _ag_news(seed: int) -> tuple[Part, Part, Part]:
    return *_hold_out(_raw(data.ag_news("train")), seed), _raw(data.ag_news("test"))


def _imdb(seed: int) -> tuple[Part, Part, Part]:
    return *_hold_out(_raw(data.imdb("train")), seed), _raw(data.imdb("test"))


def _beer(seed: int) -> tuple[Part, Part, Part]:
    """The first tenth is the test set, whatever the seed."""
    texts = _raw(data.beer())
    tenth = len(texts.texts) // 10
    rest = texts.take(range(tenth, len(texts.texts)))
    return *_hold_out(rest, seed), texts.take(range(tenth))


_REMARKS = (
    "We saw it on a Tuesday evening with my brother .",
    "The theater was half full and a little cold .",
    "It runs for about two hours without a break .",
    "Most of it takes place in a small town by the sea .",
    "I had read the book a few years ago .",
    "The director has made three films before this one .",
    "There is a long scene on a train in the middle .",
    "My neighbor told me about it last week .",
    "The story begins in the winter of 1962 .",
    "A friend of mine works in the same cinema .",
    "It was shown with subtitles , which I like .",
    "The music is mostly piano and strings .",
)
_VERDICTS = (
    ("The {} was {} .", "I thought that the {} was {} .", "In the end the {} is {} ."),
    ("acting", "plot", "ending", "camera work", "dialogue"),
)
_PHRASES = (
    ("truly dreadful", "painfully slow", "rather dull", "completely pointless"),
    ("simply wonderful", "deeply moving", "very funny", "beautifully done"),
)


def _planted(seed: int) -> tuple[Part, Part, Part]:
    """Remarks about an evening at the cinema, and one verdict, whose two words decide.

    The sentences were written for this; the verdict is what a person would mark.
    """
    generator = np.random.default_rng(seed)
    texts, labels, spans = [], [], []
    for label in generator.integers(0, 2, 600).tolist():
        frame, subject, phrase = (
            str(generator.choice(each)) for each in (*_VERDICTS, _PHRASES[label])
        )
        sentences = generator.permutation(_REMARKS)[: generator.integers(1, 4)].tolist()
        place = int(generator.integers(0, len(sentences) + 1))
        before = " ".join([*sentences[:place], frame.format(subject, "|").split("|")[0]]).split()
        words = " ".join([*sentences[:place], frame.format(subject, phrase), *sentences[place:]])
        texts.append(Text(tuple(words.split())))
        labels.append(label)
        spans.append([(len(before), len(before) + 2)])
    whole = Part(texts, torch.tensor(labels), spans)
    return whole.take(range(400)), whole.take(range(400, 500)), whole.take(range(500, 600))


_SOURCES: dict[str, Callable[[int], tuple[Part, Part, Part]]] = {
    "sst": _sst,
    "ag_news": _ag_news,
    "imdb": _imdb,
    "beer": _beer,
    "eraser_movies": _eraser,
    PLANTED: _planted,
}
