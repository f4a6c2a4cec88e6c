"""Coordinates that are updated one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork, Step, widened
from hopfy.omega import Quadratic
from hopfy.states import Sign

__all__ = ["Asynchronous"]


@dataclass(frozen=True)
class Asynchronous:
    r"""Update the coordinates of a classic network one after the other.

    One step is a sweep over all coordinates,
    :math:`q_i \leftarrow \mathrm{sign}\sum_{j \ne i} (X^\top X)_{ij} q_j`, each with the newest values of
    the others; a coordinate whose field is zero keeps its value. Every change lowers the energy
    :math:`-\tfrac12\|X q\|^2`, so that a state cannot return: sweeps end at a fixed point. Updates of all
    coordinates at once without the diagonal of :math:`X^\top X` may end in a cycle of two states.

    Args:
        seed: of the order of the coordinates, the same in every sweep; None: from first to last.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and (
            isinstance(self.seed, bool) or not isinstance(self.seed, int)
        ):
            raise TypeError(f"expected seed to be an integer or None, got {self.seed!r}.")

    def order(self, size: int) -> Tensor:
        """The coordinates in the order of their updates."""
        if self.seed is None:
            return torch.arange(size, device="cpu")
        generator = torch.Generator("cpu").manual_seed(self.seed)
        return torch.randperm(size, generator=generator, device="cpu")

    def network(self, patterns: Tensor) -> HopfieldNetwork:
        """The classic network of these signs, updated in this way."""
        if patterns.ndim > 2:
            raise ValueError(
                "expected patterns of shape (N, D) for asynchronous updates, got "
                f"{tuple(patterns.shape)}; make one network for each."
            )
        return _AsynchronousNetwork(patterns, self)


class _AsynchronousNetwork(HopfieldNetwork):
    """A classic network whose steps are sweeps."""

    def __init__(self, patterns: Tensor, updates: Asynchronous) -> None:
        super().__init__(patterns, Quadratic(), 1.0, state=Sign())
        self._choice = _Sweeps(self.memories, updates)  # type: ignore[assignment]


class _Sweeps:
    """The stepper of such a network, for any number of queries."""

    def __init__(self, patterns: Tensor, updates: Asynchronous) -> None:
        self._patterns, self._updates = patterns.detach(), updates

    def __call__(
        self,
        queries: int,  # noqa: ARG002
        recorded: bool,  # noqa: ARG002
        keeps_weights: bool = True,  # noqa: ARG002
    ) -> _Sweeps:
        return self

    def quick(self, queries: Tensor) -> None:
        """No update is shorter than a sweep."""

    def step(self, queries: Tensor, beta: float | Tensor) -> Step:  # noqa: ARG002
        columns = widened(self._patterns).T.contiguous()
        states = widened(queries.detach().clone())
        sign = Sign()
        overlaps = states @ columns
        norms = columns.square().sum(-1)
        for i in self._updates.order(columns.shape[0]).tolist():
            old = states[:, i]
            field = overlaps @ columns[i] - norms[i] * old
            new = torch.where(field == 0, old, sign(field))
            overlaps = overlaps + torch.outer(new - old, columns[i])
            states[:, i] = new
        return Step(states.to(queries.dtype), None)

    def prove(self, members: Tensor, beta: Tensor) -> Tensor:  # noqa: ARG002
        return torch.zeros(members.shape[0], dtype=torch.bool, device=members.device)
