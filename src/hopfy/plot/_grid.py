"""Pictures that were stored, damaged and recalled, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hopfy.memory import AssociativeMemory
from hopfy.network import HopfieldNetwork
from hopfy.plot.style import color_of, fresh_axes, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["recall_grid"]

_GAP = 1  # pixels between two pictures


def recall_grid(
    rows: Mapping[str, Any],
    *,
    queries: Any = None,
    truth: Any = None,
    shape: tuple[int, int] | None = None,
    render: Callable[[Tensor], Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One row of small pictures for each name, one column for each cue.

    Args:
        rows: names to pictures (M, H * W) or (M, H, W), or to networks and memories that recall
            them from the ``queries``.
        queries: the cues (M, H * W) for networks and memories.
        truth: the pictures that should come back; each exact answer of a network or memory gets a
            green frame, each other one an orange, dotted one.
        shape: (H, W); by default a square.
        render: turns rows (M, D) into what is to be seen, for instance undoes a normalization.
        ax: where to draw; a new figure by default.

    >>> import torch, hopfy, hopfy.plot
    >>> stored = torch.eye(4)
    >>> net = hopfy.HopfieldNetwork(stored, beta=4.0)
    >>> cues = stored + 0.1
    >>> rows = {"stored": stored, "damaged": cues, "sparsemax": net}
    >>> ax = hopfy.plot.recall_grid(rows, queries=cues, truth=stored)
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['stored', 'damaged', 'sparsemax']
    """
    if not isinstance(rows, Mapping) or not rows:
        raise TypeError(f"expected a mapping of names to pictures or networks, got {rows!r}.")
    found = {name: _recalled(source, queries) for name, source in rows.items()}
    pictures = {
        name: _as_pictures(each if render is None else render(each), shape)
        for name, each in found.items()
    }
    count, height, width = next(iter(pictures.values())).shape
    for name, stack in pictures.items():
        if stack.shape != (count, height, width):
            raise ValueError(
                f"expected {count} pictures of {height} x {width} in every row, got "
                f"{tuple(stack.shape)} for {name!r}."
            )
    ax = fresh_axes(ax, 0.62 * count + 1.6, 0.62 * len(rows) + 0.3)
    ax.imshow(_mosaic(list(pictures.values())), cmap="gray_r", interpolation="nearest")
    if truth is not None:
        for row, (name, source) in enumerate(rows.items()):
            if isinstance(source, HopfieldNetwork | AssociativeMemory):
                exact = found[name] == torch.as_tensor(truth)
                _frame(ax, row, exact.flatten(1).all(-1).tolist(), (height, width))
    middle = (np.arange(len(rows)) * (height + _GAP)) + (height - 1) / 2
    ax.set_yticks(middle, list(rows), fontsize=8)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def _recalled(source: Any, queries: Any) -> Tensor:
    if not isinstance(source, HopfieldNetwork | AssociativeMemory):
        return torch.as_tensor(source).detach()
    if queries is None:
        raise ValueError("expected queries (the cues) beside a network or memory, got none.")
    if isinstance(source, AssociativeMemory):
        return torch.as_tensor(source.recall(queries).patterns)
    with torch.no_grad():
        return source.retrieve(torch.as_tensor(queries)).state


def _as_pictures(pictures: Tensor, shape: tuple[int, int] | None) -> Any:
    array = np.asarray(pictures.detach().cpu(), dtype=float)
    if array.ndim == 3:
        return array
    if array.ndim != 2:
        raise ValueError(f"expected pictures of shape (M, H * W), got {array.shape}.")
    if shape is None:
        side = math.isqrt(array.shape[1])
        shape = (side, side)
    if shape[0] * shape[1] != array.shape[1]:
        raise ValueError(
            f"expected pictures of {shape[0]} x {shape[1]} pixels, got {array.shape[1]} numbers "
            "each; pass shape=(H, W)."
        )
    return array.reshape(-1, *shape)


def _mosaic(stacks: list[Any]) -> Any:
    """All pictures in one; gaps are blank, each picture uses the whole range of grays."""
    count, height, width = stacks[0].shape
    rows, columns = len(stacks) * (height + _GAP) - _GAP, count * (width + _GAP) - _GAP
    mosaic = np.full((rows, columns), np.nan)
    for row, stack in enumerate(stacks):
        for column, picture in enumerate(stack):
            top, left = row * (height + _GAP), column * (width + _GAP)
            mosaic[top : top + height, left : left + width] = _stretched(picture)
    return np.ma.masked_invalid(mosaic)


def _stretched(picture: Any) -> Any:
    known = picture[np.isfinite(picture)]
    if known.size == 0 or known.max() == known.min():
        return picture * 0
    return (picture - known.min()) / (known.max() - known.min())


def _frame(ax: Axes, row: int, exact: list[bool], size: tuple[int, int]) -> None:
    rectangle = pyplot().Rectangle
    height, width = size
    for column, same in enumerate(exact):
        corner = (column * (width + _GAP) - 0.5, row * (height + _GAP) - 0.5)
        edge, style = (color_of(2), "-") if same else (color_of(1), ":")
        frame = rectangle(corner, width, height, fill=False, edgecolor=edge, linestyle=style)
        frame.set(linewidth=1.6, clip_on=False)
        ax.add_patch(frame)
