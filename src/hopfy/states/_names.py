"""Spaces of states by name."""

from __future__ import annotations

from difflib import get_close_matches

from hopfy.states._base import State
from hopfy.states._spaces import Ball, Euclidean, LayerNorm, Sign, Tanh

__all__ = ["state_from"]

_NAMES: dict[str, type[State]] = {
    "euclidean": Euclidean,
    "ball": Ball,
    "layer-norm": LayerNorm,
    "sign": Sign,
    "tanh": Tanh,
}


def state_from(name: str | State) -> State:
    """The state space with this name and its default parameters; a `State` is returned as it is.

    >>> import hopfy
    >>> hopfy.states.state_from("layer-norm")
    LayerNorm(shift=0.0, scale=1.0)
    """
    if isinstance(name, State):
        return name
    if not isinstance(name, str):
        raise TypeError(f"expected a state such as Ball(2.0) or its name, got {name!r}.")
    key = name.strip().lower()
    if key not in _NAMES:
        near = get_close_matches(key, _NAMES, n=1)
        hint = f'; did you mean "{near[0]}"' if near else ""
        known = ", ".join(f'"{each}"' for each in _NAMES)
        raise ValueError(f"expected a state among {known}, got {name!r}{hint}.")
    return _NAMES[key]()
