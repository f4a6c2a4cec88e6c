"""A plane to draw on: the patterns' own, or a slice through many dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork

__all__ = ["Plane", "ends", "plane_grid", "plane_of"]


@dataclass(frozen=True)
class Plane:
    """The plane ``origin + coordinates @ directions``; directions (2, D) are orthonormal."""

    origin: Tensor
    directions: Tensor
    flat: bool

    def lift(self, points: Tensor) -> Tensor:
        """Points (..., 2) of the plane as states (..., D)."""
        return self.origin + points @ self.directions

    def project(self, states: Tensor) -> Tensor:
        """The points (..., 2) of the plane nearest to the states (..., D)."""
        return (states - self.origin) @ self.directions.mT

    @property
    def labels(self) -> tuple[str, str]:
        """What to write along the axes."""
        if self.flat:
            return "$q_1$", "$q_2$"
        return "first principal direction", "second principal direction"


def plane_of(network: HopfieldNetwork) -> Plane:
    """The plane itself for two coordinates, else the one that is closest to the patterns."""
    memories = network.memories.detach()
    if memories.ndim != 2 or memories.shape[1] < 2:
        raise ValueError(
            "expected a network with memories of shape (N, D), D >= 2, got shape "
            f"{tuple(memories.shape)}; draw one network of a batch at a time."
        )
    dimension = memories.shape[1]
    if dimension == 2:
        return Plane(memories.new_zeros(2), torch.eye(2).to(memories), True)
    center = memories.mean(0)
    wide = (memories - center).double()
    # With fewer than three patterns the missing directions are any that are orthonormal.
    directions = torch.linalg.svd(wide, full_matrices=True).Vh[:2]
    # A sign for each, so that the same patterns give the same picture on every machine.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return Plane(center, (directions * largest.sign()).to(memories), False)


def plane_grid(
    network: HopfieldNetwork, plane: Plane, points: int = 100, border: float = 0.2
) -> Tensor:
    """(points, points, 2): the bounding box of the patterns in the plane, plus a border.

    >>> import torch, hopfy
    >>> net = hopfy.HopfieldNetwork(torch.eye(2))
    >>> plane = plane_of(net)
    >>> plane.lift(plane_grid(net, plane, points=3, border=0.0))[0, 1]
    tensor([0.5000, 0.0000])
    """
    if not isinstance(points, int) or points < 2:
        raise ValueError(f"expected points to be an integer >= 2, got {points!r}.")
    places = plane.project(network.memories.detach())
    low, high = places.amin(0) - border, places.amax(0) + border
    first = torch.linspace(float(low[0]), float(high[0]), points).to(places)
    second = torch.linspace(float(low[1]), float(high[1]), points).to(places)
    return torch.stack(torch.meshgrid(first, second, indexing="xy"), -1)


def ends(network: HopfieldNetwork, queries: Tensor, max_steps: int, tol: float) -> Tensor:
    """The pattern that each query (..., D) ends within ``tol`` of, or -1 for none."""
    memories = network.memories.detach()
    with torch.no_grad():
        states = network.retrieve(queries, max_steps=max_steps).state
        distances = torch.cdist(states.reshape(-1, memories.shape[1]).double(), memories.double())
    near, pattern = distances.min(-1)
    return torch.where(near <= tol, pattern, -1).reshape(queries.shape[:-1])
