"""The arguments of a network and of its retrieval, checked."""

from __future__ import annotations

from torch import Tensor

from hopfy._checks import as_patterns
from hopfy.omega import Omega, omega_from
from hopfy.states import State, state_from

__all__ = ["checked_omega", "checked_state", "checked_values"]


def checked_omega(omega: Omega | str) -> Omega:
    """The omega, by its name where it is one; it maps rows of scores."""
    omega = omega_from(omega)
    if omega.event_dims > 1:
        raise ValueError(
            f"expected an omega over one dimension of patterns, got {omega}, which scores a grid of "
            f"{omega.event_dims}; lay the patterns out row by row and wrap the structure: "
            "SparseMAP(Grid(structure, (rows, columns)))."
        )
    return omega


def checked_state(state: State | str, omega: Omega) -> State:
    """The state space, by its name where it is one; it keeps the updates of the omega finite."""
    state = state_from(state)
    if not (omega.is_bounded or state.is_bounded):
        raise ValueError(
            f"expected a state space that is bounded (Sign, Tanh, Ball, LayerNorm), as the weights of "
            f"{omega.name} are not, got {state}: its updates would grow without end."
        )
    return state


def checked_values(values: object, memories: Tensor, name: str = "values") -> Tensor:
    """(..., N, E): one row per pattern, of the memories' dtype and on their device."""
    values = as_patterns(values, name)
    if values.shape[:-1] != memories.shape[:-1]:
        raise ValueError(
            f"expected one row of {name} per pattern, shape {(*memories.shape[:-1], 'E')}, "
            f"got shape {tuple(values.shape)}."
        )
    if values.dtype != memories.dtype or values.device != memories.device:
        raise TypeError(
            f"expected {name} like the memories ({memories.dtype} on {memories.device}), got "
            f"{values.dtype} on {values.device}; convert with {name}.to(memories)."
        )
    return values
