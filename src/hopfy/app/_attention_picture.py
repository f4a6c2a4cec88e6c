"""The picture of attention: two squares of weights with their words."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from hopfy.app._svg import Handle, Svg

if TYPE_CHECKING:
    from hopfy.app._attention import Attended

__all__ = ["draw_attention", "shortened"]

_LETTER = 6.6


def draw_attention(dense: Attended, sparse: Attended, alpha: float, word: int, width: float) -> str:
    """The whole picture as SVG text."""
    beside = width >= 720
    room = (width - 24) / 2 if beside else width
    words = [shortened(token, 12) for token in dense.tokens]
    margin = 14 + _LETTER * max(len(each) for each in words)
    side = min(room - margin - 2, 34.0 * len(words))
    height = 34 + margin + side
    svg = Svg(width, height if beside else 2 * height + 16, "Attention, dense and sparse")
    _draw_square(svg, 0, 0, margin, side, "softmax", dense, words, word)
    x, y = (room + 24, 0.0) if beside else (0.0, height + 16)
    _draw_square(svg, x, y, margin, side, f"{alpha:g}-entmax", sparse, words, word)
    return str(svg)


def shortened(text: str, most: int) -> str:
    """A word that fits; wide letters count twice.

    >>> shortened("incomprehensible", 8)
    'incompr…'
    """
    kept, used = "", 0
    for one in text:
        used += 2 if unicodedata.east_asian_width(one) in "WF" else 1
        if used > most - 1 and len(kept) + 1 < len(text):
            return kept + "…"
        kept += one
    return kept


def _draw_square(
    svg: Svg, x: float, y: float, margin: float, side: float, title: str, one: Attended,
    words: list[str], chosen: int,
) -> None:  # fmt: skip
    cell = side / len(words)
    left, top = x + margin, y + 24 + margin
    zeros = f"{one.zeros:.0%} zeros" if one.zeros else "no zeros"
    svg.text(x, y + 16, title, kind="title")
    svg.text(x + margin + side, y + 16, zeros, anchor="end", kind="small quiet")
    svg.rect(left, top, side, side, radius=2)
    for row, weights in enumerate(one.weights):
        for column, weight in enumerate(weights):
            if weight > 0:
                _draw_weight(svg, left + column * cell, top + row * cell, cell, weight)
    _draw_words(svg, left, top, cell, words, chosen, title)
    middle = top + chosen * cell
    svg.rect(
        left - 1, middle, side + 2, cell, fill="none", stroke="var(--no)", more='stroke-width="1.6"'
    )


def _draw_weight(svg: Svg, x: float, y: float, cell: float, weight: float) -> None:
    """A square whose color is as strong as the weight."""
    share = min(1.0, weight) ** 0.8
    style = f'fill-opacity="{0.04 + 0.96 * share:.2f}"'
    svg.rect(x + 0.6, y + 0.6, cell - 1.2, cell - 1.2, fill="var(--accent)", more=style)


def _draw_words(
    svg: Svg, left: float, top: float, cell: float, words: list[str], chosen: int, title: str
) -> None:
    size = min(12.0, max(8.0, 0.75 * cell))
    for place, word in enumerate(words):
        middle = (place + 0.5) * cell
        look = "title" if place == chosen else ""
        more = f'style="font-size:{size:.0f}px" dominant-baseline="central"'
        svg.text(left - 6, top + middle, word, anchor="end", kind=look, more=more)
        x, y = left + middle, top - 6
        turn = f'{more} transform="rotate(-90 {x:.1f} {y:.1f})"'
        svg.text(x, y, word, more=turn)
        handle = Handle(f"word:{place}", f"row of {word}, {title}", kind="press")
        svg.rect(
            left - 6 - _LETTER * 12, top + place * cell, _LETTER * 12 + 4 + cell * len(words),
            cell, fill="transparent", handle=handle,
        )  # fmt: skip
