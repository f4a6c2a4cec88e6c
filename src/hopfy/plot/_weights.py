"""Which patterns take part in which answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy._checks import as_states
from hopfy.network import HopfieldNetwork
from hopfy.plot.style import fresh_axes, sequential

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["weights"]

# Numbers are written into the cells of small pictures.
_WRITTEN = 120


def weights(
    network: HopfieldNetwork,
    queries: Tensor,
    *,
    most: int = 40,
    ax: Axes | None = None,
) -> Axes:
    r"""The weights :math:`\hat y_\Omega(\beta X q)`: one row per query, one column per pattern.

    A weight of exactly zero is white; that is what the sparse maps are for. Of many patterns the
    ``most`` with the largest weights are shown, in their stored order.

    Args:
        network: a network with memories (N, D).
        queries: (M, D), or (D,) for one.
        most: how many patterns to show at most.
        ax: where to draw; a new figure by default.

    >>> import torch, hopfy, hopfy.plot
    >>> net = hopfy.HopfieldNetwork(torch.eye(3), omega="sparsemax", beta=2.0)
    >>> hopfy.plot.weights(net, torch.tensor([[0.9, 0.1, -0.2]])).get_xlabel()
    'stored pattern'
    """
    flat = as_states(queries, network.memories).reshape(-1, network.memories.shape[-1])
    with torch.no_grad():
        rows = network.weights(flat)
    largest = rows.amax(0)
    count = int((largest > 0).sum().clamp(1, most)) if rows.shape[1] > most else rows.shape[1]
    shown = largest.topk(count).indices.sort().values
    table = rows[:, shown].cpu()
    ax = fresh_axes(ax, max(3.2, 0.34 * count + 1.6), max(1.8, 0.3 * len(table) + 1.2))
    colors = sequential("Blues").with_extremes(bad="white")
    cells = table.masked_fill(table == 0, torch.nan).numpy()
    ax.imshow(cells, cmap=colors, vmin=0, vmax=max(1.0, float(table.max())), aspect="auto")
    if table.numel() <= _WRITTEN:
        _write(ax, table)
    ax.set_xticks(range(count), [str(one) for one in shown.tolist()], fontsize=7)
    ax.set_yticks(range(len(table)))
    ax.set_xlabel("stored pattern")
    ax.set_ylabel("query")
    beta = network.beta
    at = f", beta = {beta:.3g}" if isinstance(beta, int | float) else ""
    ax.set_title(f"{network.omega.name}{at}", fontsize=9)
    return ax


def _write(ax: Axes, table: Tensor) -> None:
    for row, values in enumerate(table.tolist()):
        for column, value in enumerate(values):
            if value > 0:
                ink = "white" if value > 0.6 else "black"
                text = (
                    "1" if value == 1 else "<.01" if value < 0.005 else f"{value:.2f}".lstrip("0")
                )
                ax.text(column, row, text, ha="center", va="center", fontsize=6.5, color=ink)
