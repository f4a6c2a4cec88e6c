"""Pictures as SVG text: shapes that follow the reader's light or dark preference.

Every text that is drawn is escaped here, and only here. Colors are CSS variables of the picture's own
style sheet, so that an exported file looks as it did on the page.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray

__all__ = ["Handle", "Scale", "Svg", "fixed", "image_address"]

Points = Iterable[tuple[float, float]]

_STYLE = """
.hopfy{--ink:#1d1d1f;--quiet:#5d5d66;--line:#dadae0;--card:#f6f6f9;--paper:#fff;--yes:#00704f;--no:#b34700;
--accent:#005a8f;--mark:#ffd84d;font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media (prefers-color-scheme:dark){.hopfy{--ink:#ececf0;--quiet:#a9aab3;--line:#3c3d45;--card:#212228;
--paper:#17181c;--yes:#3fcf9e;--no:#ffa05c;--accent:#7cc4f2;--mark:#7a5f00}}
.hopfy *{pointer-events:none}.hopfy [data-handle]{pointer-events:all}
.hopfy text{fill:var(--ink)}.hopfy .quiet{fill:var(--quiet)}.hopfy .small{font-size:11px}
.hopfy .title{font-weight:600}.hopfy .yes{fill:var(--yes)}.hopfy .no{fill:var(--no)}
.hopfy .mono{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
"""


def fixed(number: float) -> str:
    """A coordinate with as many digits as a screen can show.

    >>> fixed(3.0), fixed(-0.04), fixed(12.3456)
    ('3', '0', '12.3')
    """
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


@dataclass(frozen=True)
class Scale:
    """A linear map from numbers to coordinates.

    >>> Scale(0.0, 1.0, 100.0, 0.0)(0.25)
    75.0
    """

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


@dataclass(frozen=True)
class Handle:
    """Something to grab: its name, and how coordinates of the picture become numbers.

    Attributes:
        name: what the view is told, such as ``"score:2"``.
        label: what a screen reader says.
        kind: ``"drag"`` (moves with the pointer and the arrow keys), ``"press"`` or ``"paint"``.
        x, y: the scales along which it moves; None where it does not.
    """

    name: str
    label: str
    kind: str = "drag"
    x: Scale | None = None
    y: Scale | None = None
    step: float = 0.05

    def attributes(self) -> str:
        """As attributes of an SVG element."""
        parts = [f"data-handle={quoteattr(_printable(self.name))}", f'data-kind="{self.kind}"']
        for axis in ("x", "y"):
            scale: Scale | None = getattr(self, axis)
            if scale is not None:
                numbers = (scale.low, scale.high, scale.start, scale.stop)
                parts.append(f'data-{axis}="{" ".join(f"{each:.6g}" for each in numbers)}"')
        role = "button" if self.kind != "drag" else "slider"
        parts.append(f'data-step="{self.step:g}" tabindex="0" role="{role}"')
        parts.append(f"aria-label={quoteattr(_printable(self.label))}")
        return " ".join(parts)


@dataclass
class Svg:
    """A picture that grows by one shape after the other."""

    width: float
    height: float
    title: str
    _parts: list[str] = field(default_factory=list)

    def rect(
        self, x: float, y: float, w: float, h: float, *, fill: str = "var(--card)",
        stroke: str = "none", radius: float = 0, handle: Handle | None = None, more: str = "",
    ) -> None:  # fmt: skip
        """A rectangle; negative widths and heights are drawn the other way."""
        x, w = (x + w, -w) if w < 0 else (x, w)
        y, h = (y + h, -h) if h < 0 else (y, h)
        place = f'x="{fixed(x)}" y="{fixed(y)}" width="{fixed(w)}" height="{fixed(h)}"'
        corner = f' rx="{fixed(radius)}"' if radius else ""
        self._add("rect", f'{place}{corner} fill="{fill}" stroke="{stroke}" {more}', handle)

    def circle(
        self, x: float, y: float, r: float, *, fill: str, stroke: str = "none",
        handle: Handle | None = None, more: str = "",
    ) -> None:  # fmt: skip
        """A disk."""
        place = f'cx="{fixed(x)}" cy="{fixed(y)}" r="{fixed(r)}"'
        self._add("circle", f'{place} fill="{fill}" stroke="{stroke}" {more}', handle)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, color: str = "var(--line)",
        width: float = 1, more: str = "",
    ) -> None:  # fmt: skip
        """A straight line."""
        place = f'x1="{fixed(x1)}" y1="{fixed(y1)}" x2="{fixed(x2)}" y2="{fixed(y2)}"'
        self._add("line", f'{place} stroke="{color}" stroke-width="{width:g}" {more}')

    def path(self, points: Points, *, color: str, width: float = 1.8, more: str = "") -> None:
        """A line through points."""
        text = " ".join(f"{fixed(x)},{fixed(y)}" for x, y in points)
        if text:
            style = f'fill="none" stroke="{color}" stroke-width="{width:g}" stroke-linejoin="round"'
            self._add("polyline", f'points="{text}" {style} {more}')

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "",
        more: str = "",
    ) -> None:  # fmt: skip
        """A line of text, escaped; ``kind`` holds class names of the style sheet."""
        place = f'x="{fixed(x)}" y="{fixed(y)}" text-anchor="{anchor}"'
        self._parts.append(f'<text {place} class="{kind}" {more}>{escape(_printable(text))}</text>')

    def image(
        self, x: float, y: float, w: float, h: float, address: str, *, smooth: bool = False
    ) -> None:
        """A picture made of pixels."""
        place = f'x="{fixed(x)}" y="{fixed(y)}" width="{fixed(w)}" height="{fixed(h)}"'
        style = "" if smooth else ' style="image-rendering:pixelated"'
        ratio = 'preserveAspectRatio="none"'
        self._parts.append(f'<image {place} {ratio}{style} href="{address}"/>')

    def clip(self, x: float, y: float, w: float, h: float, name: str) -> str:
        """Declare a window; returns the attribute that cuts a shape to it."""
        place = f'x="{fixed(x)}" y="{fixed(y)}" width="{fixed(w)}" height="{fixed(h)}"'
        self._parts.append(f'<clipPath id="{name}"><rect {place}/></clipPath>')
        return f'clip-path="url(#{name})"'

    def _add(self, tag: str, attributes: str, handle: Handle | None = None) -> None:
        grip = f" {handle.attributes()}" if handle is not None else ""
        self._parts.append(f"<{tag} {attributes}{grip}/>")

    def __str__(self) -> str:
        size = f'width="{fixed(self.width)}" height="{fixed(self.height)}"'
        box = f'viewBox="0 0 {fixed(self.width)} {fixed(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="hopfy" {size} {box} role="group"'
        ground = '<rect class="ground" width="100%" height="100%" fill="var(--paper)"/>'
        body = "".join(self._parts)
        name = quoteattr(_printable(self.title))
        return f"{head} aria-label={name}><style>{_STYLE}</style>{ground}{body}</svg>"


def _printable(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(
        one if one in "\t\n" or (one >= " " and not "\ud800" <= one <= "\udfff" and one < "\ufffe")
        or one > "\uffff" else "\ufffd"
        for one in text
    )  # fmt: skip


def image_address(pixels: NDArray[np.uint8] | Sequence[Sequence[int]]) -> str:
    """Pixels (H, W), (H, W, 3) or (H, W, 4) of 0 to 255 as the address of a PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
