"""The picture of the digits: the cue to paint on, every answer, and the stored digits to pick from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hopfy.app._svg import Handle, Svg, image_address

if TYPE_CHECKING:
    from hopfy.app._digits import Album, Cue, Recalled

__all__ = ["draw_digits"]

_CARD, _GAP = 238.0, 12.0
_SHOWN = 40


def draw_digits(
    digit: int, cue: Cue, answers: Sequence[Recalled], album: Album, width: float
) -> str:
    """The whole picture as SVG text."""
    beside = width >= 760
    side = min(width, 280.0)
    left, top = (side + 24, 0.0) if beside else (0.0, side + 44)
    columns = max(2, int((width - left + _GAP) // 172))
    across = (width - left + _GAP) / columns - _GAP
    cards = math.ceil(len(answers) / columns) * (_CARD + _GAP)
    bottom = top + max(cards, side + 44 if beside else 0)
    small, per_line = _thumbnails(width)
    strip = math.ceil(_SHOWN / per_line) * (small + 6) + 30
    svg = Svg(width, bottom + strip, "A damaged digit and what every network recalls")
    _draw_cue(svg, cue, side, album)
    for place, each in enumerate(answers):
        x = left + place % columns * (across + _GAP)
        y = top + place // columns * (_CARD + _GAP)
        _draw_answer(svg, x, y, across, each, cue, album)
    _draw_strip(svg, bottom, digit, album)
    return str(svg)


def _thumbnails(width: float) -> tuple[float, int]:
    """The size of a stored digit, and how many fit in a line."""
    small = 44.0
    return small, max(4, int((width + 6) // (small + 6)))


def _draw_cue(svg: Svg, cue: Cue, side: float, album: Album) -> None:
    """64 squares to paint on."""
    cell = side / 8
    for place, (shade, known) in enumerate(
        zip(cue.pixels.tolist(), cue.known.tolist(), strict=True)
    ):
        row, column = divmod(place, 8)
        level = round(255 - 15.9 * shade)
        fill = f"rgb({level},{level},{level})" if known else "#b9a6cf"
        seen = f"shade {shade:.0f} of 16" if known else "unknown"
        name = f"pixel {row + 1}, {column + 1}: {seen}"
        on = "1" if shade >= 8 and known else "0"
        handle = Handle(f"pixel:{place}", name, kind="paint")
        svg.rect(
            column * cell, row * cell, cell + 0.3, cell + 0.3, fill=fill, handle=handle,
            more=f'data-on="{on}" {_neighbors(row, column)}',
        )  # fmt: skip
    svg.rect(0.5, 0.5, side - 1, side - 1, fill="none", stroke="var(--line)")
    text = "the cue: paint on it"
    if cue.truth:
        text = "the cue, from " + " and ".join(_named(each, album) for each in cue.truth)
    svg.text(0, side + 20, text, kind="small quiet")


def _neighbors(row: int, column: int) -> str:
    """Where the arrow keys go."""
    places = {"up": (row - 1, column), "down": (row + 1, column),
              "left": (row, column - 1), "right": (row, column + 1)}  # fmt: skip
    inside = {name: 8 * r + c for name, (r, c) in places.items() if 0 <= r < 8 and 0 <= c < 8}
    return 'data-go="1" ' + " ".join(f'data-{n}="pixel:{place}"' for n, place in inside.items())


def _named(number: int, album: Album) -> str:
    return f"no. {number} (a {album.labels[number]})"


@lru_cache(maxsize=256)
def _address(pixels: tuple[float, ...]) -> str:
    shades = 255 - 15.9 * np.asarray(pixels).reshape(8, 8)
    return image_address(np.clip(shades, 0, 255).astype(np.uint8))


def _draw_answer(
    svg: Svg, x: float, y: float, w: float, each: Recalled, cue: Cue, album: Album
) -> None:
    right = bool(each.ids) and set(each.ids) == set(cue.truth)
    frame = "var(--yes)" if right else "var(--no)" if cue.truth else "var(--line)"
    svg.rect(x + 0.5, y + 0.5, w - 1, _CARD - 1, radius=10, stroke="var(--line)")
    svg.text(x + 12, y + 23, each.name, kind="title")
    side = min(w - 24, 138.0)
    left = x + 12
    svg.image(left, y + 34, side, side, _address(each.pixels))
    svg.rect(left, y + 34, side, side, fill="none", stroke=frame, more='stroke-width="2.5"')
    for line, (text, kind) in enumerate(_said(each, right, cue, album)):
        svg.text(x + 12, y + side + 54 + 17 * line, text, kind=f"small {kind}")


def _said(each: Recalled, right: bool, cue: Cue, album: Album) -> list[tuple[str, str]]:
    steps = f"{each.steps} step{'s' * (each.steps != 1)}"
    proof = "certified, " if each.certified else ""
    if each.ids:
        color = "yes" if right else "no" if cue.truth else ""
        first, *rest = [_named(number, album) for number in each.ids[:2]]
        more = [(f"and {number}", color) for number in rest]
        return [(f"exactly {first}", color), *more, (f"{proof}{steps}", "quiet")]
    return [("a blend", "no"), (f"nearest to {_named(each.nearest, album)}", "quiet"),
            (steps, "quiet")]  # fmt: skip


def _draw_strip(svg: Svg, y: float, digit: int, album: Album) -> None:
    small, per_line = _thumbnails(svg.width)
    svg.text(0, y + 14, f"pick one of the stored digits (the first {_SHOWN})", kind="small quiet")
    for number in range(_SHOWN):
        x = number % per_line * (small + 6)
        top = y + 24 + number // per_line * (small + 6)
        svg.image(x, top, small, small, _address(tuple(album.pixels[number].tolist())))
        chosen = number == digit
        stroke = "var(--accent)" if chosen else "var(--line)"
        handle = Handle(f"pick:{number}", f"stored digit {_named(number, album)}", kind="press")
        style = f'stroke-width="{3 if chosen else 1}"'
        svg.rect(x, top, small, small, fill="transparent", stroke=stroke, handle=handle, more=style)
