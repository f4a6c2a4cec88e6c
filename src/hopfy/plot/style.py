"""Colors, markers and axes, shared by all pictures of the library.

>>> from hopfy.plot.style import color_of
>>> color_of(0)
'#0072B2'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GRAY", "INK", "MARKERS", "color_of", "fresh_axes", "pyplot", "sequential"]

# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
_OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
INK = "#1a1a1a"
GRAY = "#8a8a8a"


def color_of(number: int) -> str:
    """The color of the ``number``-th thing; colors repeat, so write numbers beside many."""
    return _OKABE_ITO[number % len(_OKABE_ITO)]


def pyplot() -> Any:
    """Matplotlib's pyplot, or an error that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("hopfy.plot needs matplotlib: pip install 'hopfy[plot]'.") from None
    return plt


def fresh_axes(ax: Axes | None, width: float = 4.8, height: float = 4.0) -> Axes:
    """``ax``, or the axes of a new figure."""
    if ax is not None:
        return ax
    return pyplot().subplots(figsize=(width, height), layout="constrained")[1]  # type: ignore[no-any-return]


def sequential(name: str = "cividis") -> Any:
    """A map from numbers to colors whose lightness rises evenly, also for the color-blind."""
    return pyplot().get_cmap(name)
