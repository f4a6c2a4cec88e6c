"""Rationales as objects, and as highlighted text that a person reads."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from hopfy.estimators._text import Text

__all__ = ["Overlap", "Rationale", "Rationales", "as_spans", "html_page", "visible"]

# A weight this close to 0 or 1 differs from it by rounding only.
_ROUNDING = 1e-6
_NO_BLANK_BEFORE = frozenset(".,;:!?%)]}'…") | {"...", "''", "n't", "n’t"}
_NO_BLANK_AFTER = frozenset("([{") | {"``", "$", "#"}

Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Overlap:
    """How well the selected words meet those that people marked.

    Attributes:
        precision: the share of the selected words that are marked.
        recall: the share of the marked words that are selected.
    """

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of the two; 0 if both are."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(frozen=True, eq=False)
class Rationale:
    """The words that a prediction was made from.

    Attributes:
        text: the tokens and where they come from.
        weights: (length,), how much each token took part, mostly 0 and 1.
        k: how many words there were to select.
        prediction: the class, or the number.
        probability: of the class; None for a number.
        human: the words that people marked, as spans (start, stop) of tokens; None if unknown.
    """

    text: Text
    weights: np.ndarray[Any, Any] = field(repr=False)
    k: int
    prediction: Any
    probability: float | None = None
    human: Spans | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words and signs of the text."""
        return self.text.tokens

    @property
    def selected(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of the tokens with a weight above 0."""
        return np.flatnonzero(self.weights > _ROUNDING)

    @property
    def fractional(self) -> int:
        """How many tokens are selected in part; 0 if exactly ``k`` are, each entirely.

        A few words with nearly equal scores may share what is left of k, less so the lower the
        temperature.
        """
        return int(((self.weights > _ROUNDING) & (self.weights < 1 - _ROUNDING)).sum())

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Runs of selected tokens as (start, stop)."""
        return _runs(self.selected.tolist())

    def strongest(self) -> Rationale:
        """The ``k`` words of largest weight, each entirely: a rationale where every word has a weight.

        >>> weighed = Rationale(Text(("a", "fine", "film")), np.array([0.1, 0.6, 0.3]), 2, "good")
        >>> weighed.strongest().phrases
        ['fine film']
        """
        weights = np.zeros_like(self.weights)
        weights[np.argsort(-self.weights, kind="stable")[: self.k]] = 1
        return replace(self, weights=np.where(self.weights > 0, weights, 0))

    @property
    def phrases(self) -> list[str]:
        """The text of the spans."""
        pieces = self._pieces()
        return ["".join(pieces[2 * start + 1 : 2 * stop]) for start, stop in self.spans]

    @property
    def overlap(self) -> Overlap | None:
        """Agreement with the human spans; None where no word was marked."""
        marked = _members(self.human or (), len(self.tokens))
        if not marked.any():
            return None
        selected = np.zeros(len(self.tokens), dtype=bool)
        selected[self.selected] = True
        both = float((selected & marked).sum())
        return Overlap(both / max(1, int(selected.sum())), both / int(marked.sum()))

    def __str__(self) -> str:
        """The text with its rationale in brackets; invisible characters as ``⟨U+202E⟩``."""
        pieces = [visible(piece) for piece in self._pieces()]
        for start, stop in self.spans:
            pieces[2 * start + 1] = "[" + pieces[2 * start + 1]
            pieces[2 * stop - 1] += "]"
        return "".join(pieces)

    def _repr_html_(self) -> str:
        return Rationales([self])._repr_html_()

    def _pieces(self) -> list[str]:
        """Tokens and what lies between them, in turn: token n is at 2 n + 1."""
        gaps = self._gaps()
        between = (piece for pair in zip(gaps, self.tokens, strict=False) for piece in pair)
        return [*between, gaps[-1]]

    def _gaps(self) -> list[str]:
        """What stands before each token, and behind the last."""
        if not self.tokens:
            return [self.text.source or ""]
        if self.text.source is None:
            return ["", *(_blank(one, other) for one, other in pairwise(self.tokens)), ""]
        ends = [0, *(stop for _, stop in self.text.places)]
        starts = [*(start for start, _ in self.text.places), len(self.text.source)]
        return [self.text.source[a:b] for a, b in zip(ends, starts, strict=True)]


class Rationales(list[Rationale]):
    """The rationales of several texts; a notebook shows them as highlighted text."""

    def _repr_html_(self) -> str:
        return _render("highlight.html.jinja", cards=[_Card(each) for each in self])


# Joiners, which some scripts and emoji need between their letters.
_JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    """Characters that are not seen, but change the order or the look of others, as their numbers.

    These are directional overrides and isolates, zero-width blanks, control characters and the like.
    Joiners stay between characters beyond ASCII, where scripts and emoji use them.

    >>> visible("go\\u202eod")
    'go⟨U+202E⟩od'
    """
    return "".join(
        f"⟨U+{ord(one):04X}⟩"
        if _hides(one, text[place - 1 : place], text[place + 1 :][:1])
        else one
        for place, one in enumerate(text)
    )


def _hides(one: str, before: str, after: str) -> bool:
    if one in "\n\t\r" or unicodedata.category(one) not in ("Cf", "Cc"):
        return False
    return not (one in _JOINERS and before > "\x7f" and after > "\x7f")


def html_page(rationales: Iterable[Rationale], title: str = "Rationales") -> str:
    """A whole page, which loads nothing and runs nothing."""
    from markupsafe import Markup

    # The fragment comes out of a template that escapes all text that comes from outside.
    body = Markup(Rationales(rationales)._repr_html_())
    return _render("highlight_page.html.jinja", title=title, body=body)


def as_spans(spans: object, lengths: Sequence[int]) -> list[list[tuple[int, int]] | None]:
    """Human spans of every text, checked: lists of (start, stop), or None where there are none."""
    if isinstance(spans, str) or not isinstance(spans, Iterable):
        raise TypeError(
            "expected human_spans to be a list with the spans (start, stop) of each text, "
            f"got {type(spans).__name__}."
        )
    given = list(spans)
    if len(given) != len(lengths):
        raise ValueError(
            f"expected human_spans for each of {len(lengths)} texts, got {len(given)}."
        )
    return [
        None if each is None else [_span(span, number, lengths[number]) for span in each]
        for number, each in enumerate(given)
    ]


def _span(span: Any, number: int, length: int) -> tuple[int, int]:
    try:
        start, stop = (int(edge) for edge in span)
    except (TypeError, ValueError):
        start, stop = -1, -1
    if not 0 <= start < stop <= length:
        raise ValueError(
            "expected a span of tokens (start, stop) with 0 <= start < stop <= "
            f"{length} in text {number}, got {span!r}."
        )
    return start, stop


@dataclass(frozen=True)
class _Piece:
    """A stretch of text that looks the same all along."""

    text: str
    level: int  # 0 is not selected, 10 is as much as any word
    human: bool
    wrong: bool

    @property
    def plain(self) -> bool:
        return not (self.level or self.human)


class _Card:
    """One rationale as its template wants it."""

    def __init__(self, rationale: Rationale) -> None:
        self.rationale = rationale
        count = len(rationale.tokens)
        self.words = f"{len(rationale.selected)} of {count} word{'s' if count != 1 else ''}"
        self.overlap = rationale.overlap
        prediction = rationale.prediction
        number = isinstance(prediction, float | np.floating)
        self.prediction = f"{prediction:.4g}" if number else visible(str(prediction))

    @property
    def probability(self) -> str:
        found = self.rationale.probability
        return "" if found is None else f"{100 * found:.0f} %"

    @property
    def pieces(self) -> list[_Piece]:
        """Neighbors that look the same are one piece, with the blanks between them."""
        looks = _looks(self.rationale)
        between = [_both(one, other) for one, other in pairwise([_NOTHING, *looks, _NOTHING])]
        in_turn = [look for pair in zip(between, looks, strict=False) for look in pair]
        in_turn.append(_NOTHING)
        told = zip(in_turn, self.rationale._pieces(), strict=True)
        return [
            _Piece(visible("".join(text for _, text in group)), *look)
            for look, group in groupby(told, key=lambda pair: pair[0])
        ]


_Look = tuple[int, bool, bool]
_NOTHING: _Look = (0, False, False)


def _looks(rationale: Rationale) -> list[_Look]:
    """The level of each token, whether people marked it, and whether that is a mismatch."""
    count = len(rationale.tokens)
    human = _members(rationale.human or (), count).tolist()
    highest = float(rationale.weights.max(initial=0.0)) or 1.0
    levels = np.where(
        rationale.weights > _ROUNDING, np.ceil(10 * rationale.weights / highest), 0
    ).astype(int)
    known = rationale.human is not None
    return [
        (level, marked, known and level > 0 and not marked)
        for level, marked in zip(levels.tolist(), human, strict=True)
    ]


def _both(one: _Look, other: _Look) -> _Look:
    """How the blank between two tokens looks."""
    return min(one[0], other[0]), one[1] and other[1], one[2] and other[2]


def _members(spans: Spans, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found = np.zeros(length, dtype=bool)
    for start, stop in spans:
        found[start:stop] = True
    return found


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _blank(one: str, other: str) -> str:
    """Between two tokens of a list: as one would write them."""
    contraction = other[:1] in ("'", "’") and other[1:].isalpha()
    glued = other in _NO_BLANK_BEFORE or one in _NO_BLANK_AFTER or contraction
    return "" if glued else " "


def _render(name: str, **values: Any) -> str:
    found = str(_template(name).render(**values))
    return found.encode("utf-8", "replace").decode()  # half a character could not be written


@lru_cache
def _template(name: str) -> Any:
    # jinja2 comes with torch.
    from jinja2 import Environment, StrictUndefined

    source = resources.files("hopfy.estimators").joinpath(name).read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source)
