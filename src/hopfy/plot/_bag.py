"""A bag and the instances that decided it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfy.plot.style import GRAY, INK, color_of, fresh_axes, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bag"]

_GAP = 0.28  # between two pictures, as a share of a picture; a weight is written in it


def bag(
    instances: Any,
    weights: Any,
    *,
    targets: Any = None,
    columns: int = 10,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """The instances of one bag and how much each of them took part.

    Pictures are framed, the thicker the larger their weight; one with a weight of exactly zero had
    no say and fades. Vectors become bars. A green triangle marks the instances that are known to
    matter.

    Args:
        instances: (n, H, W) or (n, channels, H, W) with 1 or 3 channels; any other shape (n, ...)
            is drawn as bars.
        weights: (n,), for example from `hopfy.estimators.MILClassifier.instance_weights`.
        targets: (n,) booleans, True for the instances that should matter, where that is known.
        columns: pictures in a row at most.
        title: above it, for example the bag's label and its predicted probability.
        ax: where to draw; a new figure by default.

    >>> import numpy as np, hopfy.plot
    >>> axes = hopfy.plot.bag(np.random.rand(3, 8, 8), [0.0, 0.7, 0.3], title="positive")
    >>> [text.get_text() for text in axes.texts]
    ['0', '.70', '.30']
    """
    array, shares, known = _checked(instances, weights, targets)
    pictures = _as_pictures(array)
    if pictures is None:
        ax = fresh_axes(ax, max(3.2, 0.3 * len(shares) + 1.2), 2.6)
        _draw_bars(ax, shares, known)
    else:
        across = max(1, min(columns, len(shares)))
        rows = math.ceil(len(shares) / across)
        height = pictures.shape[1] / pictures.shape[2] + 1.4 * _GAP
        ax = fresh_axes(ax, 0.62 * across + 0.2, 0.5 * rows * height + 0.5)
        _draw_pictures(ax, pictures, shares, known, across)
    ax.set_title(title, fontsize=9)
    return ax


def _checked(instances: Any, weights: Any, targets: Any) -> tuple[Any, Any, Any]:
    array, shares = np.asarray(instances), np.asarray(weights, dtype=float)
    known = np.zeros(len(shares), bool) if targets is None else np.asarray(targets, dtype=bool)
    if array.ndim < 2 or len(array) == 0:
        raise ValueError(f"expected the instances of one bag (n, ...), got shape {array.shape}.")
    for name, found in (("weight", shares), ("target", known)):
        if found.shape != (len(array),):
            raise ValueError(
                f"expected one {name} for each of {len(array)} instances, got shape {found.shape}."
            )
    return array, shares, known


def _as_pictures(array: Any) -> Any:
    """(n, H, W) or (n, H, W, 3) with numbers in 0 .. 1, or None."""
    if array.ndim == 4 and array.shape[1] in (1, 3):
        array = np.moveaxis(array, 1, -1)
        array = array[..., 0] if array.shape[-1] == 1 else array
    elif array.ndim != 3:
        return None
    array = np.nan_to_num(array.astype(float))
    low, high = array.min(), array.max()
    return (array - low) / (high - low) if high > low else array * 0


def _draw_pictures(ax: Axes, pictures: Any, shares: Any, known: Any, across: int) -> None:
    rectangle = pyplot().Rectangle
    height = pictures.shape[1] / pictures.shape[2]
    largest = max(float(shares.max()), np.finfo(float).tiny)
    for number, (picture, share) in enumerate(zip(pictures, shares, strict=True)):
        left = (number % across) * (1 + _GAP)
        top = -(number // across) * (height + 1.4 * _GAP)
        box = (left, left + 1, top - height, top)
        alpha = 1.0 if share > 0 else 0.25
        ax.imshow(picture, cmap="gray_r", vmin=0, vmax=1, extent=box, alpha=alpha, zorder=1)
        frame = rectangle((left, top - height), 1, height, fill=False, clip_on=False, zorder=2)
        edge = color_of(0) if share > 0 else GRAY
        frame.set(edgecolor=edge, linewidth=0.5 + 3.0 * max(0.0, share) / largest)
        ax.add_patch(frame)
        text = ax.text(left + 0.5, top - height - 0.05, _short(share), color=edge, fontsize=6.5)
        text.set(ha="center", va="top")
        if known[number]:
            # On the frame, so that it cannot be taken for a mark of the picture above.
            ax.plot(left + 0.5, top, "v", color=color_of(2), markersize=6, markeredgecolor="white")
    rows = math.ceil(len(shares) / across)
    ax.set_xlim(-0.1, across * (1 + _GAP) - _GAP + 0.1)
    ax.set_ylim(-rows * (height + 1.4 * _GAP) + 0.1, 0.15)
    ax.set_aspect("equal")
    ax.axis("off")


def _draw_bars(ax: Axes, shares: Any, known: Any) -> None:
    places = np.arange(len(shares))
    ax.bar(places, shares, color=color_of(0), width=0.7)
    zero = shares == 0
    ax.plot(places[zero], shares[zero], "_", color=GRAY, markersize=6, clip_on=False)
    if known.any():
        ax.plot(places[known], shares[known], "v", color=color_of(2), markersize=5, label="target")
        ax.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1, 1))
    ax.set_xticks(places, [str(place) for place in places], fontsize=7)
    ax.set_xlabel("instance", color=INK)
    ax.set_ylabel("weight", color=INK)
    ax.set_ylim(0, 1.12 * max(1e-12, float(shares.max())))
    ax.spines[["top", "right"]].set_visible(False)


def _short(share: float) -> str:
    if share == 0:
        return "0"
    return "<.01" if share < 0.005 else f"{share:.2f}".removeprefix("0")
