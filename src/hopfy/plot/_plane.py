"""Energies, basins of attraction and trajectories on a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy._checks import as_states
from hopfy._renamed import renamed_arguments
from hopfy.network import HopfieldNetwork
from hopfy.plot._space import Plane, ends, plane_grid, plane_of
from hopfy.plot.style import GRAY, INK, color_of, fresh_axes, pyplot, sequential

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["basins", "energy_landscape", "trajectory"]

# Numbers beside more patterns than this would cover the picture.
_NAMED = 12
# A space of states with fewer of the grid's points in it is a line or a point.
_THIN = 0.05


def energy_landscape(
    network: HopfieldNetwork,
    *,
    points: int = 120,
    border: float = 0.2,
    levels: int = 16,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Contours of the energy (Eq. 8) over the patterns' bounding box; dark is low.

    For patterns of more than two coordinates the picture is a slice through the energy: the plane
    through the patterns' mean along their two principal directions. Points outside the space of
    states stay white; where (nearly) all of them are, the concave part of the energy is drawn.

    Args:
        network: a network with memories (N, D).
        points: grid points along each side.
        border: how far the picture reaches beyond the patterns.
        levels: how many contours.
        colorbar: whether to draw the scale of the energy.
        ax: where to draw; a new figure by default.

    >>> import torch, hopfy, hopfy.plot
    >>> net = hopfy.HopfieldNetwork(torch.eye(2), omega="sparsemax", beta=2.0)
    >>> hopfy.plot.energy_landscape(net, points=20).get_xlabel()
    '$q_1$'
    """
    plane = plane_of(network)
    places = plane_grid(network, plane, points, border)
    with torch.no_grad():
        energies = _drawable_energies(network, plane.lift(places))
    ax = fresh_axes(ax)
    x, y, z = places[..., 0].cpu().numpy(), places[..., 1].cpu().numpy(), energies.cpu().numpy()
    filled = ax.contourf(x, y, z, levels=levels, cmap=sequential())
    ax.contour(x, y, z, levels=levels, colors="white", linewidths=0.3, alpha=0.6)
    if colorbar:
        ax.figure.colorbar(filled, ax=ax, label="energy", shrink=0.9)
    _draw_patterns(ax, network, plane)
    return _finish(ax, plane, places)


def _drawable_energies(network: HopfieldNetwork, states: Tensor) -> Tensor:
    energies = network.energy(states)
    inside = energies.isfinite()
    if float(inside.double().mean()) < _THIN:
        return network.energy_parts(states).concave
    return torch.where(inside, energies, torch.nan)


@renamed_arguments(tolerance="tol")
def basins(
    network: HopfieldNetwork,
    *,
    points: int = 150,
    border: float = 0.2,
    max_steps: int = 50,
    tol: float = 1e-3,
    ax: Axes | None = None,
) -> Axes:
    """Which pattern each point of the plane ends at; white where it ends at a mixture.

    Args:
        network: a network with memories (N, D); for D > 2 see `energy_landscape`.
        points: grid points along each side.
        border: how far the picture reaches beyond the patterns.
        max_steps: the largest number of updates.
        tol: how close to a pattern a state must end.
        ax: where to draw; a new figure by default.

    >>> import torch, hopfy, hopfy.plot
    >>> net = hopfy.HopfieldNetwork(torch.eye(2), omega="sparsemax", beta=2.0)
    >>> len(hopfy.plot.basins(net, points=20).images)
    1
    """
    plane = plane_of(network)
    places = plane_grid(network, plane, points, border)
    found = ends(network, plane.lift(places), max_steps, tol)
    ax = fresh_axes(ax)
    colors = pyplot().matplotlib.colors.to_rgb
    white = torch.ones(*found.shape, 3)
    for pattern in torch.unique(found[found >= 0]).tolist():
        white[found.cpu() == pattern] = torch.tensor(colors(color_of(pattern)))
    x, y = places[..., 0], places[..., 1]
    extent = (float(x.min()), float(x.max()), float(y.min()), float(y.max()))
    ax.imshow(white.numpy(), origin="lower", extent=extent, interpolation="nearest")
    _draw_patterns(ax, network, plane)
    return _finish(ax, plane, places)


def trajectory(
    network: HopfieldNetwork,
    queries: Tensor,
    *,
    max_steps: int = 50,
    patterns: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """The paths of queries (M, D) under the updates (Eq. 9), from a ring to a dot.

    Draw it over `energy_landscape` or `basins` by passing their axes.

    Args:
        network: a network with memories (N, D); for D > 2 the paths are projected to the plane.
        queries: where the paths begin.
        max_steps: the largest number of updates.
        patterns: whether to mark the stored patterns.
        ax: where to draw; a new figure by default.

    >>> import torch, hopfy, hopfy.plot
    >>> net = hopfy.HopfieldNetwork(torch.eye(2), omega="sparsemax", beta=2.0)
    >>> ax = hopfy.plot.energy_landscape(net, points=20)
    >>> hopfy.plot.trajectory(net, torch.tensor([[0.2, 0.4]]), ax=ax) is ax
    True
    """
    plane = plane_of(network)
    states = [as_states(queries, network.memories).detach().reshape(-1, network.memories.shape[1])]
    with torch.no_grad():
        for _ in range(max_steps):
            states.append(network.update(states[-1]))
            if torch.equal(states[-1], states[-2]):
                break
    paths = plane.project(torch.stack(states)).cpu().numpy()
    ax = fresh_axes(ax)
    if patterns:
        _draw_patterns(ax, network, plane)
    halo = [_outline(2.6)]
    ax.plot(
        paths[..., 0], paths[..., 1], color=INK, linewidth=1.1, zorder=3, path_effects=halo,
        marker=".", markersize=2.5,
    )  # fmt: skip
    ax.scatter(
        paths[0, :, 0],
        paths[0, :, 1],
        s=22,
        facecolors="white",
        edgecolors=INK,
        linewidths=1.0,
        zorder=4,
    )
    ax.scatter(
        paths[-1, :, 0],
        paths[-1, :, 1],
        s=16,
        color=INK,
        edgecolors="white",
        linewidths=0.6,
        zorder=5,
    )
    ax.set_xlabel(plane.labels[0])
    ax.set_ylabel(plane.labels[1])
    return ax


def _draw_patterns(ax: Axes, network: HopfieldNetwork, plane: Plane) -> None:
    places = plane.project(network.memories.detach()).cpu().numpy()
    colors = [color_of(number) for number in range(len(places))]
    many = len(places) > _NAMED
    ax.scatter(
        places[:, 0], places[:, 1], s=18 if many else 110, c=colors, marker="o" if many else "*", zorder=6,
        edgecolors="white", linewidths=0.6 if many else 1.0, clip_on=False,
    )  # fmt: skip
    if many:
        return
    middle = (places.min(0) + places.max(0)) / 2
    for number, place in enumerate(places):
        x, y = (5.0 if at <= center else -5.0 for at, center in zip(place, middle, strict=True))
        ax.annotate(
            str(number), place, xytext=(x, y), textcoords="offset points", fontsize=7, color=INK,
            ha="left" if x > 0 else "right", va="bottom" if y > 0 else "top", zorder=7,
            path_effects=[_outline(2.0)],
        )  # fmt: skip


def _outline(width: float) -> object:
    """A white rim that keeps lines and letters readable on any background."""
    pyplot()
    from matplotlib import patheffects

    return patheffects.withStroke(linewidth=width, foreground="white", alpha=0.85)


def _finish(ax: Axes, plane: Plane, places: Tensor) -> Axes:
    ax.set_xlim(float(places[..., 0].min()), float(places[..., 0].max()))
    ax.set_ylim(float(places[..., 1].min()), float(places[..., 1].max()))
    ax.set_aspect("equal")
    ax.set_xlabel(plane.labels[0])
    ax.set_ylabel(plane.labels[1])
    ax.tick_params(colors=GRAY, labelcolor=INK)
    return ax
