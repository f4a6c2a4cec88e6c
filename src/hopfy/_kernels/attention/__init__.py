r"""Attention by blocks of queries: ``map(scale * Q X^T + bias) V``, never holding all weights.

The inner operation, the same for every backend:

``forward(queries, keys, values, visible, family, scale, dropout) -> (output, state) | None``
``backward(state, queries, keys, values, cotangent, wanted) -> gradients``

* ``queries`` (G, R, D), ``keys`` (G, N, D), ``values`` (G, N, E): contiguous, one floating dtype. A
  group is one key head of one sample. With grouped queries (GQA) the rows of a group hold its query
  heads one after the other, ``R = repeat * M``, so that row r stands at position ``r % M``.
* ``visible``: a `Visible`, which keys each row may select, and what is added to its scores.
* ``family``: a `Family`, the kind of the map ("entmax", "normmax", "ksubsets") and its parameter
  (alpha or k), 0-d or one for each row (G, R).
* ``scale``: a number; ``dropout``: the share of the weights that is dropped.

``forward`` answers None where a backend cannot run (the caller then takes the dense path).
``backward`` returns the gradients of queries, keys, values and the parameter; ``wanted`` says whether
the last one is needed.

Backends: `hopfy._kernels.attention.cpu_blocks` (numba loops around torch's products) and
`hopfy._kernels.attention.gpu` (Triton); a state names the backend that made it. `reference` is the
definition, in plain differentiable torch.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hopfy._kernels.attention.reference import reference
from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.backends import backend_for
from hopfy._runtime.precision import outside_autocast

__all__ = ["Family", "Visible", "attend_one", "backward", "forward", "kept_weights", "reference"]

_MODULES = {
    "cpu": "cpu_blocks",
    "few": "few_queries",
    "short": "short_sequences",
    "triton": "gpu",
}


@cache
def _module(backend: str) -> Any:
    return importlib.import_module(f"{__name__}.{_MODULES[backend]}")


def forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Visible,
    family: Family,
    scale: float = 1.0,
    dropout: float = 0.0,
    backend: str | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Any] | None:
    """Output (G, R, E) and what `backward` needs; None where no backend can run.

    ``backend`` is what `backend_for` says, if the caller has asked it already. Dropout with the same
    ``seed`` drops the same weights; without one torch's generator draws it.
    """
    backend = backend_for(queries) if backend is None else backend
    if backend not in _MODULES:
        return None
    more = () if seed is None else (seed,)
    found: tuple[Tensor, Any] | None = _module(backend).forward(
        queries, keys, values, visible, family, scale, dropout, *more
    )
    return found


def attend_one(
    query: Tensor, key: Tensor, value: Tensor, kind: str, parameter: float, scale: float
) -> Tensor | None:
    """Output (..., 1, E) of one query (..., 1, D) that sees all keys (..., N, D), on the CPU.

    The answer is that of `forward`, at less cost for each call: there are no masks, and nothing is
    kept for a backward pass. None where it cannot run.
    """
    found: Tensor | None = _module("few").attend(query, key, value, kind, parameter, scale)
    return found


def backward(
    state: Any, queries: Tensor, keys: Tensor, values: Tensor, cotangent: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, values and, if wanted, of the parameter of each row (G, R)."""
    with outside_autocast(queries):
        gradients: tuple[Tensor, Tensor, Tensor, Tensor | None] = _module(state.backend).backward(
            state, queries, keys, values, cotangent, wanted
        )
    return gradients


def kept_weights(state: Any, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """What dropout multiplied each weight (G, R, N) with, on the state's device."""
    factors: Tensor = _module(state.backend).kept_weights(state, shape, dtype)
    return factors
