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

Backends: `hopfy._kernels.attention.cpu_blocks` (numba loops around torch's products) and, if it is
there, ``gpu`` (Triton). `reference` is the definition, in plain differentiable torch.
"""

from __future__ import annotations

from hopfy._kernels.attention.cpu_blocks import State, backward, forward
from hopfy._kernels.attention.reference import reference
from hopfy._kernels.attention.types import Family, Visible

__all__ = ["Family", "State", "Visible", "backward", "forward", "reference"]
