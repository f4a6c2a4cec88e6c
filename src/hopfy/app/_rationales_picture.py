"""A text with its rationale highlighted, as a picture."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

from hopfy.app._svg import Svg
from hopfy.estimators import Rationale

__all__ = ["draw_rationale", "place_words"]

_LINE = 30.0
_SIZE = 16.0
_LETTER = 0.603 * _SIZE  # of a monospaced font


def draw_rationale(found: Rationale, width: float) -> str:
    """The whole picture as SVG text."""
    columns = max(12, int((width - 32) / _LETTER))
    placed = place_words(found, columns)
    lines = 1 + max((line for _, line, _ in placed), default=0)
    top = 84.0
    svg = Svg(width, top + lines * _LINE + 22, "A text and the words that decided")
    svg.rect(0.5, 0.5, width - 1, svg.height - 1, radius=10, stroke="var(--line)")
    _draw_verdict(svg, found, width)
    shown = [(16 + column * _LETTER, top + line * _LINE, word) for column, line, word in placed]
    _draw_marks(svg, shown, found.weights.tolist())
    more = f'style="font-size:{_SIZE:g}px;white-space:pre" xml:space="preserve"'
    for x, y, word in shown:
        svg.text(x, y + 16, word, kind="mono", more=more)
    return str(svg)


def _draw_verdict(svg: Svg, found: Rationale, width: float) -> None:
    sure = found.probability or 0.0
    positive = sure if str(found.prediction) == "positive" else 1 - sure
    color = "yes" if positive >= 0.5 else "no"
    svg.text(16, 30, f"{found.prediction}, {sure:.0%}", kind=f"title {color}",
             more='style="font-size:18px"')  # fmt: skip
    count = len(found.tokens)
    svg.text(width - 16, 30, f"{len(found.selected)} of {count} words", anchor="end", kind="quiet")
    bar = width - 32
    svg.rect(16, 44, bar, 8, fill="var(--no)", radius=4)
    svg.rect(16, 44, bar * positive, 8, fill="var(--yes)", radius=4)


def _draw_marks(svg: Svg, shown: list[tuple[float, float, str]], weights: list[float]) -> None:
    """Marks behind the words; neighbors in a line share one."""
    marked = [weight > 1e-6 for weight in weights]
    for place, (x, y, word) in enumerate(shown):
        if marked[place]:
            share = f'fill-opacity="{0.35 + 0.65 * min(1.0, weights[place]):.2f}"'
            svg.rect(x - 3, y - 2, _cells(word) * _LETTER + 6, 25, fill="var(--mark)", radius=4,
                     more=share)  # fmt: skip
    for (here, one), (there, other) in pairwise(zip(marked, shown, strict=True)):
        if here and there and one[1] == other[1]:
            end = one[0] + _cells(one[2]) * _LETTER
            svg.rect(end, one[1] - 2, max(0.0, other[0] - end), 25, fill="var(--mark)")


def _cells(text: str) -> int:
    """How many columns a text takes: wide letters two, marks above letters none."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def place_words(found: Rationale, columns: int) -> list[tuple[int, int, str]]:
    """Column, line and text of every word, as the text has them; words that are too long are cut."""
    placed: list[tuple[int, int, str]] = []
    column, line = 0, 0
    ends = [0, *(stop for _, stop in found.text.places)]
    for (start, _), end, word in zip(found.text.places, ends, found.tokens, strict=False):
        gap = (found.text.source or "")[end:start]
        column += min(1, len(gap)) if placed else 0
        shown = word if _cells(word) <= columns else word[: columns // 2 - 1] + "…"
        size = _cells(shown)
        if column + size > columns or "\n" in gap:
            column, line = 0, line + 1
        placed.append((column, line, shown))
        column += size
    return placed
