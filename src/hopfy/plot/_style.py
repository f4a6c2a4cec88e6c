"""Colours, markers and fresh axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopfy.omega import Omega

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GREY", "INK", "MARKERS", "colour", "fresh_axes", "name_of", "pyplot", "sequential"]

# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
_OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
INK = "#1a1a1a"
GREY = "#8a8a8a"


def colour(number: int) -> str:
    """The colour of the ``number``-th thing; colours repeat, so write numbers beside many."""
    return _OKABE_ITO[number % len(_OKABE_ITO)]


def pyplot() -> Any:
    """Matplotlib's pyplot, or a sentence that says how to get it."""
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
    """A map from numbers to colours whose lightness rises evenly, also for the colour-blind."""
    return pyplot().get_cmap(name)


def name_of(omega: Omega) -> str:
    """The paper's name of a map, such as ``1.5-entmax``.

    >>> import hopfy
    >>> name_of(hopfy.Norm(5.0))
    '5-normmax'
    """
    return omega.name
