"""Networks that are a choice of two regularizers."""

from __future__ import annotations

from torch import Tensor

from hopfy._checks import as_patterns, values_can_be_read
from hopfy.models._asynchronous import Asynchronous
from hopfy.network import HopfieldNetwork
from hopfy.omega import EntropicKSubsets, Exponential, Polynomial, Quadratic, Shannon, Tsallis
from hopfy.states import Sign

__all__ = [
    "classic",
    "dense",
    "entropic_topk",
    "exponential",
    "generalized_sparse",
    "modern",
    "sparse",
]


def classic(patterns: Tensor, updates: Asynchronous | None = None) -> HopfieldNetwork:
    r"""Hopfield (1982): :math:`q \leftarrow \mathrm{sign}(X^\top X q)` with the Hebbian matrix.

    The energy is :math:`-\tfrac12\|X q\|^2`. By default all coordinates are updated at once, and one
    whose field is zero becomes 0. With ``updates=Asynchronous(seed)`` they are updated one after the
    other, as in the paper of 1982, where every state ends at a fixed point.

    >>> import torch, hopfy
    >>> patterns = torch.tensor([[1.0, 1, 1, -1, -1, -1], [1, -1, 1, -1, 1, -1]])
    >>> net = hopfy.models.classic(patterns, updates=hopfy.models.Asynchronous(seed=0))
    >>> net.retrieve(torch.tensor([1.0, 1, 1, -1, -1, 1])).state
    tensor([ 1.,  1.,  1., -1., -1., -1.])
    """
    patterns = _signs(patterns)
    if updates is not None:
        if not isinstance(updates, Asynchronous):
            raise TypeError(f"expected updates to be Asynchronous(seed) or None, got {updates!r}.")
        return updates.network(patterns)
    return HopfieldNetwork(patterns, Quadratic(), 1.0, state=Sign())


def dense(patterns: Tensor, n: int = 3) -> HopfieldNetwork:
    r"""Krotov and Hopfield (2016): :math:`q \leftarrow \mathrm{sign}(X^\top (X q)^n)`."""
    return HopfieldNetwork(_signs(patterns), Polynomial(n), 1.0, state=Sign())


def exponential(patterns: Tensor, b: float | Tensor = 1.0) -> HopfieldNetwork:
    r"""Demircigil et al. (2017): :math:`q \leftarrow \mathrm{sign}(X^\top \exp(b X q))`."""
    return HopfieldNetwork(_signs(patterns), Exponential(b), 1.0, state=Sign())


def modern(patterns: Tensor, beta: float | Tensor = 1.0) -> HopfieldNetwork:
    r"""Ramsauer et al. (2020): :math:`q \leftarrow X^\top \mathrm{softmax}(\beta X q)` (Eq. 2).

    It minimizes :math:`-\frac1\beta \log\sum_i \exp(\beta x_i^\top q) + \frac12 \|q\|^2` (Eq. 1).
    """
    return HopfieldNetwork(patterns, Shannon(), beta)


def sparse(patterns: Tensor, beta: float | Tensor = 1.0) -> HopfieldNetwork:
    r"""Hu et al. (2023): :math:`q \leftarrow X^\top \mathrm{sparsemax}(\beta X q)`."""
    return HopfieldNetwork(patterns, Tsallis(2.0), beta)


def generalized_sparse(
    patterns: Tensor, alpha: float | Tensor = 1.5, beta: float | Tensor = 1.0
) -> HopfieldNetwork:
    r"""Wu et al. (2023): :math:`q \leftarrow X^\top \mathrm{entmax}_\alpha(\beta X q)`.

    An alpha that requires grad is learned; it receives the exact gradient.
    """
    return HopfieldNetwork(patterns, Tsallis(alpha), beta)


def entropic_topk(
    patterns: Tensor, k: float | Tensor, beta: float | Tensor = 1.0
) -> HopfieldNetwork:
    r"""Entropic top-k (after Davydov et al., 2023): :math:`q \leftarrow X^\top \sigma(\beta X q - \tau)`.

    The threshold makes the weights sum to k, so that a state is the sum of about k patterns.
    """
    return HopfieldNetwork(patterns, EntropicKSubsets(k), beta)


def _signs(patterns: Tensor) -> Tensor:
    patterns = as_patterns(patterns, "patterns")
    if values_can_be_read(patterns) and not bool((patterns.detach().abs() == 1).all()):
        other = patterns.detach()[patterns.detach().abs() != 1].flatten()[0].item()
        raise ValueError(
            f"expected patterns of -1 and 1, got {other:g} in them; use patterns.sign(), or "
            "HopfieldNetwork with another state."
        )
    return patterns
