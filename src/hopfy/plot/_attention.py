"""Which tokens attend to which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hopfy.plot.style import GRAY, pyplot, sequential

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["attention"]


def attention(
    weights: Tensor,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    heads: Sequence[int] | None = None,
    columns: int = 4,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Heat maps of attention, one for each head; weights of exactly zero stay blank.

    The title of a head says which share of the weights is zero, among those that can be anything
    else: a key that no head attends to (padding) does not count.

    Args:
        weights: (heads, M, N), or (M, N) for one head, as ``return_weights=True`` gives them for
            one sample.
        tokens: the M tokens that attend; numbers by default.
        key_tokens: the N tokens attended to, by default ``tokens`` if there are as many.
        heads: which heads to show; all by default.
        columns: heads in one row of the figure.
        axes: where to draw, one for each head; a new figure by default.

    Returns:
        The axes, one for each head.

    >>> import torch, hopfy, hopfy.plot
    >>> weights = hopfy.functional.sparsemax(torch.eye(3).expand(2, 3, 3))
    >>> [one.get_title() for one in hopfy.plot.attention(weights, ["a", "b", "c"])]
    ['head 0: 67% zeros', 'head 1: 67% zeros']
    """
    table = _checked(weights)
    chosen = range(len(table)) if heads is None else [_head(h, len(table)) for h in heads]
    _, rows, count = table.shape
    if key_tokens is None and tokens is not None and count == rows:
        key_tokens = tokens
    row_names = _labels(tokens, rows, "tokens")
    column_names = _labels(key_tokens, count, "key_tokens")
    axes = _grid(len(chosen), columns, rows, count) if axes is None else list(axes)
    if len(axes) != len(chosen):
        raise ValueError(f"expected {len(chosen)} axes, one for each head, got {len(axes)}.")
    colors = sequential("Blues").with_extremes(bad="white")
    largest = max(float(table.max()), 1e-12) if table.numel() else 1.0
    for ax, head in zip(axes, chosen, strict=True):
        cells = table[head].masked_fill(table[head] == 0, torch.nan)
        ax.imshow(cells.numpy(), cmap=colors, vmin=0, vmax=largest, aspect="auto")
        ax.set_title(f"head {head}: {_sparsity(table[head], table):.0%} zeros", fontsize=9)
        _label(ax.xaxis, column_names, rotation=90)
        _label(ax.yaxis, row_names)
        ax.tick_params(length=0)
        for side in ax.spines.values():
            side.set_color(GRAY)
    return list(axes)


def _checked(weights: Any) -> Tensor:
    if not isinstance(weights, Tensor) or weights.ndim not in (2, 3):
        came = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"expected weights of one sample, (heads, queries, keys), got {came}; index the batch."
        )
    table = weights.detach().cpu().float()
    return table[None] if table.ndim == 2 else table


def _head(head: int, count: int) -> int:
    if not -count <= head < count:
        raise IndexError(f"expected heads in [0, {count - 1}], got {head}.")
    return head % count


def _labels(tokens: Sequence[str] | None, count: int, name: str) -> list[str] | None:
    if tokens is None:
        return None
    if len(tokens) != count:
        raise ValueError(f"expected {count} {name}, one for each row or column, got {len(tokens)}.")
    # Matplotlib reads $...$ as mathematics.
    return [str(token).replace("$", r"\$") for token in tokens]


def _sparsity(weights: Tensor, table: Tensor) -> float:
    """The share of zeros of a head, without keys and queries that no head uses: these are padding."""
    queries, keys = (table > 0).any(2).any(0), (table > 0).any(1).any(0)
    used = weights[queries][:, keys]
    return float((used == 0).float().mean()) if used.numel() else 1.0


def _grid(count: int, columns: int, rows: int, keys: int) -> list[Axes]:
    columns = max(1, min(columns, count))
    lines = math.ceil(count / columns)
    width, height = min(6.0, 1.2 + 0.16 * keys), min(6.0, 1.2 + 0.16 * rows)
    _, axes = pyplot().subplots(
        lines,
        columns,
        figsize=(columns * width, lines * height),
        layout="constrained",
        squeeze=False,
    )
    flat = list(axes.flat)
    for ax in flat[count:]:
        ax.set_axis_off()
    return flat[:count]


def _label(axis: Any, tokens: list[str] | None, rotation: int = 0) -> None:
    if tokens is not None:
        axis.set_ticks(range(len(tokens)), tokens, fontsize=7, rotation=rotation)
