"""The picture of the plane: background, patterns, path, radii, and the energy of every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopfy.app._svg import Handle, Scale, Svg, image_address
from hopfy.plot.style import color_of

if TYPE_CHECKING:
    from hopfy.app._plane import Field, PlaneSettings, Walk

__all__ = ["draw_plane"]

_REACH = 1.6
_LEVELS = 14
# From low to high energy: the lightness rises evenly, also for the color-blind.
_COLORS = np.array(
    [
        [16, 32, 74],
        [36, 72, 118],
        [58, 116, 146],
        [104, 158, 164],
        [168, 196, 178],
        [234, 230, 205],
    ],
    dtype=np.float64,
)


def draw_plane(settings: PlaneSettings, path: Walk, field: Field, width: float) -> str:
    """The whole picture as SVG text."""
    beside = width >= 760
    side = min(width, 620.0) if not beside else min(0.64 * width, 640.0)
    height = side if beside else side + 220
    svg = Svg(width, height, "Patterns, a cue and its path in the plane")
    x, y = Scale(-_REACH, _REACH, 0, side), Scale(-_REACH, _REACH, side, 0)
    clip = svg.clip(0, 0, side, side, "plane")
    _draw_background(svg, field, side, len(settings.patterns) // 2)
    _draw_radii(svg, settings, path, x, y, clip)
    _draw_path(svg, path, settings.step, x, y, clip)
    _draw_handles(svg, settings, x, y)
    svg.rect(0.5, 0.5, side - 1, side - 1, fill="none", stroke="var(--line)")
    if beside:
        _draw_energies(svg, side + 24, 0, width - side - 24, min(300.0, side), path, settings.step)
        _draw_weights(svg, side + 24, 320, width - side - 24, path)
    else:
        _draw_energies(svg, 0, side + 16, width, 200, path, settings.step)
    return str(svg)


def _draw_background(svg: Svg, field: Field, side: float, count: int) -> None:
    if field.energies.size:
        _draw_energy(svg, field.energies, side)
        return
    palette = np.array([_rgb(color_of(number)) for number in range(count)], dtype=np.float64)
    total = field.ends.sum(-1, keepdims=True)
    mixed = field.ends @ palette / np.where(total > 0, total, 1)
    # What is recalled exactly has the full color of its pattern, a mixture a paler one.
    share = np.where(field.exact, 0.85, 0.45)[..., None]
    pixels = share * mixed + (1 - share) * 255
    svg.image(0, 0, side, side, image_address(pixels[::-1].astype(np.uint8)))


def _rgb(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _draw_energy(svg: Svg, energies: NDArray[np.float64], side: float) -> None:
    from contourpy import contour_generator

    inside = np.isfinite(energies)
    low, high = (energies[inside].min(), energies[inside].max()) if inside.any() else (0.0, 1.0)
    room = high - low or 1.0
    # Equal steps of the square root: the wells are where things happen.
    share = np.sqrt(np.where(inside, energies - low, 0.0) / room)
    at = share * (len(_COLORS) - 1)
    before = np.clip(at.astype(int), 0, len(_COLORS) - 2)
    rest = (at - before)[..., None]
    pixels = (1 - rest) * _COLORS[before] + rest * _COLORS[before + 1]
    pixels[~inside] = 128
    svg.image(0, 0, side, side, image_address(pixels[::-1].astype(np.uint8)), smooth=True)
    if not inside.all():
        return
    step = side / (energies.shape[0] - 1)
    lines: Any = contour_generator(z=share)
    for level in np.linspace(0, 1, _LEVELS + 2)[1:-1]:
        for line in lines.lines(float(level)):
            points = [(float(x) * step, side - float(y) * step) for x, y in line]
            svg.path(points, color="#fff", width=0.6, more='stroke-opacity="0.55"')


def _draw_radii(
    svg: Svg, settings: PlaneSettings, path: Walk, x: Scale, y: Scale, clip: str
) -> None:
    unit = x(1) - x(0)
    for number, radius in enumerate(path.radii):
        if not 0 < radius < math.inf:
            continue
        at = x(settings.patterns[2 * number]), y(settings.patterns[2 * number + 1])
        size = min(radius, 4 * _REACH) * unit
        style = f'stroke-width="1.8" stroke-dasharray="6 4" {clip}'
        svg.circle(*at, size, fill="#ffffff22", stroke="#ffffff", more=style)


def _draw_path(svg: Svg, path: Walk, step: int, x: Scale, y: Scale, clip: str) -> None:
    shown = [(x(a), y(b)) for a, b in path.states[: step + 1]]
    svg.path(shown, color="#ffffff", width=4.5, more=clip)
    svg.path(shown, color="#1d1d1f", width=2, more=clip)
    for place in shown[1:]:
        svg.circle(*place, 3.6, fill="#1d1d1f", stroke="#ffffff", more=clip)


def _draw_handles(svg: Svg, settings: PlaneSettings, x: Scale, y: Scale) -> None:
    values = settings.patterns
    for number in range(len(values) // 2):
        px, py = values[2 * number], values[2 * number + 1]
        _draw_star(svg, x(px), y(py), color_of(number))
        name = f"pattern {number} at {px:.2f}, {py:.2f}"
        svg.circle(
            x(px), y(py), 21, fill="transparent",
            handle=Handle(f"pattern:{number}", name, x=x, y=y, step=0.05),
        )  # fmt: skip
        style = 'style="paint-order:stroke;stroke:#fff;stroke-width:3.5px;fill:#1d1d1f"'
        svg.text(x(px) + 13, y(py) - 11, str(number), kind="title", more=style)
    cx, cy = settings.cue
    svg.circle(x(cx), y(cy), 10, fill="#ffffff66", stroke="#ffffff", more='stroke-width="6"')
    svg.circle(x(cx), y(cy), 10, fill="none", stroke="#d01c5b", more='stroke-width="3.2"')
    label = f"cue at {cx:.2f}, {cy:.2f}"
    handle = Handle("cue", label, x=x, y=y, step=0.05)
    svg.circle(x(cx), y(cy), 21, fill="transparent", handle=handle)


def _draw_star(svg: Svg, x: float, y: float, color: str) -> None:
    corners = []
    for place in range(11):
        angle, size = math.pi * place / 5 - math.pi / 2, 12.0 if place % 2 == 0 else 5.2
        corners.append((x + size * math.cos(angle), y + size * math.sin(angle)))
    svg.path(corners, color="#ffffff", width=2.4, more=f'style="fill:{color}"')


def _draw_energies(svg: Svg, x: float, y: float, w: float, h: float, path: Walk, step: int) -> None:
    svg.rect(x + 0.5, y + 0.5, w - 1, h - 1, radius=10, stroke="var(--line)")
    svg.text(x + 14, y + 24, "Energy at every step", kind="title")
    known = [each for each in path.energies if math.isfinite(each)]
    if not known:
        svg.text(x + 14, y + 50, "infinite: outside the domain of the states", kind="quiet")
        return
    low, high = min(known), max(known)
    up = Scale(low, high if high > low else low + 1, y + h - 34, y + 46)
    across = Scale(0, max(1, len(path.energies) - 1), x + 24, x + w - 24)
    points = [(across(n), up(e)) for n, e in enumerate(path.energies) if math.isfinite(e)]
    svg.path(points, color="var(--line)", width=2)
    for number, energy in enumerate(path.energies):
        if math.isfinite(energy):
            done = number <= step
            fill = "var(--accent)" if done else "var(--line)"
            svg.circle(across(number), up(energy), 4.5, fill=fill)
    first, last = path.energies[0], path.energies[min(step, len(path.energies) - 1)]
    text = f"cue {_energy(first)}, now {_energy(last)}"
    svg.text(x + w - 14, y + 24, text, anchor="end", kind="small quiet")
    count = len(path.energies) - 1
    svg.text(x + 14, y + h - 12, "step 0", kind="small quiet")
    svg.text(x + w - 14, y + h - 12, f"step {count}", anchor="end", kind="small quiet")


def _energy(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "∞"


def _draw_weights(svg: Svg, x: float, y: float, w: float, path: Walk) -> None:
    h = min(210.0, svg.height - y)
    svg.rect(x + 0.5, y + 0.5, w - 1, h - 1, radius=10, stroke="var(--line)")
    svg.text(x + 14, y + 24, "Weights of the patterns at the end", kind="title")
    scale = Scale(0, max(1.0, *path.weights), y + h - 30, y + 44)
    step = (w - 28) / len(path.weights)
    svg.line(x + 14, scale(0), x + w - 14, scale(0), color="var(--quiet)")
    for number, weight in enumerate(path.weights):
        left = x + 14 + number * step
        color = color_of(number)
        svg.rect(left + 0.2 * step, scale(0), 0.6 * step, scale(weight) - scale(0), fill=color)
        middle = left + 0.5 * step
        svg.text(middle, scale(0) + 16, str(number), anchor="middle", kind="small quiet")
