"""The picture of the maps: one chart of scores, and a card for every map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hopfy.app._svg import Handle, Scale, Svg
from hopfy.plot.style import color_of

if TYPE_CHECKING:
    from hopfy.app._maps import MapAnswer

__all__ = ["draw_maps"]

_SCORES, _CARD, _GAP = 220.0, 176.0, 14.0
_TOP = 3.0


def draw_maps(
    scores: Sequence[float], temperature: float, answers: Sequence[MapAnswer], width: float
) -> str:
    """The whole picture as SVG text."""
    columns = 1 if width < 560 else 2 if width < 960 else 3
    rows = math.ceil(len(answers) / columns)
    height = _SCORES + _GAP + rows * (_CARD + _GAP)
    svg = Svg(width, height, "Scores, and the weights that every map gives them")
    _draw_scores(svg, scores)
    across = (width - (columns - 1) * _GAP) / columns
    for place, each in enumerate(answers):
        x = place % columns * (across + _GAP)
        y = _SCORES + _GAP + place // columns * (_CARD + _GAP)
        _draw_card(svg, x, y, across, each, temperature, place)
    return str(svg)


def _draw_scores(svg: Svg, scores: Sequence[float]) -> None:
    """Bars with a handle at their end."""
    svg.rect(0.5, 0.5, svg.width - 1, _SCORES - 1, radius=10, stroke="var(--line)")
    svg.text(16, 24, "scores θ: drag them, or use the arrow keys", kind="title")
    scale = Scale(-_TOP, _TOP, _SCORES - 22, 44)
    step = min(110.0, (svg.width - 32) / len(scores))
    left = (svg.width - step * len(scores)) / 2
    svg.line(16, scale(0), svg.width - 16, scale(0), color="var(--quiet)")
    for place, score in enumerate(scores):
        x = left + (place + 0.5) * step
        color = color_of(place)
        bar = min(34.0, 0.5 * step)
        svg.rect(x - bar / 2, scale(0), bar, scale(score) - scale(0), fill=color, radius=2)
        label = f"score {place + 1}, now {score:.2f}"
        handle = Handle(f"score:{place}", label, y=scale, step=0.1)
        svg.circle(x, scale(score), 20, fill="transparent", handle=handle)
        svg.circle(
            x,
            scale(score),
            9,
            fill=color,
            stroke="var(--paper)",
            more='stroke-width="2.5" class="grip"',
        )
        down = scale(score) + (-16 if score >= 0 else 24)
        svg.text(x, down, f"{score:.2f}", anchor="middle", kind="small")


def _draw_card(
    svg: Svg, x: float, y: float, w: float, each: MapAnswer, temperature: float, place: int
) -> None:
    svg.rect(x + 0.5, y + 0.5, w - 1, _CARD - 1, radius=10, stroke="var(--line)")
    svg.text(x + 14, y + 24, _title(each.name), kind="title")
    svg.text(x + w - 14, y + 24, _verdict(each), anchor="end", kind=f"small {_class(each)}")
    half = 0.42 * w
    _draw_weights(svg, x + 14, y + 36, half - 24, each)
    _draw_path(svg, x + half + 6, y + 36, w - half - 22, each, temperature, place)
    svg.text(x + 14, y + _CARD - 12, _margin(each), kind="small quiet")


def _title(name: str) -> str:
    """A short name: what the settings say is not repeated."""
    return {"2-entmax": "sparsemax"}.get(name, name.partition(",")[0])


def _class(each: MapAnswer) -> str:
    return "yes" if each.exact else "quiet"


def _verdict(each: MapAnswer) -> str:
    if each.exact:
        return f"exactly {each.support} of {len(each.weights)}"
    return f"{each.support} of {len(each.weights)} not zero"


def _margin(each: MapAnswer) -> str:
    if math.isinf(each.margin):
        return "no margin: never exact"
    return f"margin {each.margin:.3g}, lead {each.lead:.3g}"


def _draw_weights(svg: Svg, x: float, y: float, w: float, each: MapAnswer) -> None:
    low = 0.0 if each.simplex else min(0.0, *each.weights)
    high = 1.0 if each.simplex else max(1.0, *each.weights)
    scale = Scale(low, high, y + 104, y + 12)
    step = w / len(each.weights)
    svg.line(x, scale(0), x + w, scale(0), color="var(--quiet)")
    svg.text(x, y + 8, f"{high:.3g}", kind="small quiet")
    for place, weight in enumerate(each.weights):
        left = x + place * step + 0.15 * step
        if weight == 0:
            svg.circle(left + 0.35 * step, scale(0), 2, fill=color_of(place))
            continue
        height = scale(weight) - scale(0)
        svg.rect(left, scale(0), 0.7 * step, height, fill=color_of(place), radius=1.5)


def _draw_path(
    svg: Svg, x: float, y: float, w: float, each: MapAnswer, temperature: float, place: int
) -> None:
    """Weights over the temperature, and the current one as a line to drag."""
    hottest = each.temperatures[-1]
    across = Scale(0, hottest, x, x + w)
    flat = [weight for row in each.path for weight in row]
    low, high = (0.0, 1.0) if each.simplex else _shown_range(each)
    up = Scale(low, high, y + 104, y + 4)
    svg.line(x, y + 104, x + w, y + 104, color="var(--quiet)")
    clip = svg.clip(x, y, w, 108, f"path{place}") if flat else ""
    for number in range(len(each.weights)):
        points = [
            (across(t), up(min(max(row[number], low - 1), high + 1)))
            for t, row in zip(each.temperatures, each.path, strict=True)
        ]
        svg.path(points, color=color_of(number), more=clip)
    at = across(temperature)
    svg.line(at, y, at, y + 106, color="var(--ink)", more='stroke-dasharray="3 3"')
    name = f"temperature, now {temperature:.3g}, in the card of {each.name}"
    handle = Handle(f"temperature:{place}", name, x=across)
    svg.rect(at - 9, y, 18, 112, fill="transparent", handle=handle)
    svg.text(x + w, y + 119, f"T = {temperature:.3g}", anchor="end", kind="small quiet")


def _shown_range(each: MapAnswer) -> tuple[float, float]:
    """Of weights without bounds: what the current ones need, and a little more."""
    low, high = min(0.0, *each.weights), max(0.0, *each.weights)
    room = 0.25 * (high - low) or 1.0
    return low - (room if low < 0 else 0), high + room
