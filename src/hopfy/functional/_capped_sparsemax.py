"""Capped sparsemax: sparse probabilities below upper bounds."""

from __future__ import annotations

from torch import Tensor

from hopfy._checks import Rule, as_floating, check_parameter, values_can_be_read
from hopfy._kernels import capped as kernel
from hopfy.functional._rows import along_rows, checked
from hopfy.functional._symmetric_map import ByParameter, symmetric_map

__all__ = ["UPPER", "capped_sparsemax"]

UPPER = Rule("upper", ">= 0", lambda u: u >= 0)
_by_upper = ByParameter(kernel.upper_vjp, kernel.upper_jvp)
_apply = symmetric_map("capped_sparsemax", kernel.solve, kernel.vjp, _by_upper)


def capped_sparsemax(
    scores: Tensor, upper: float | Tensor, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    r"""Sparse probabilities below upper bounds,
    :math:`\arg\min_y \tfrac12 \|y - \theta\|^2` over :math:`\{y \in \triangle : y \le u\}`
    (constrained sparsemax).

    The solution is :math:`y_i = \min(u_i, (\theta_i - \tau)_+)`; upper bounds of 1 or more give
    `sparsemax`. Lowering the bound of an entry by the weight that it has received spreads attention
    over steps: what is used up cannot be selected again.

    Args:
        scores: any floating tensor; one row runs along ``dim``.
        upper: at least 0; a number, or a tensor that broadcasts to the scores, with a bound for each
            entry. The bounds of the unmasked entries of a row must add up to 1 or more. A tensor
            receives the exact gradient.
        dim: the dimension that sums to one.
        mask: True where an entry may be selected; broadcasts to the scores.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch
    >>> from hopfy import functional as F
    >>> F.capped_sparsemax(torch.tensor([2.0, 0.5, 0.25, -1.0]), 0.5)
    tensor([0.5000, 0.3750, 0.1250, 0.0000])
    >>> F.capped_sparsemax(torch.tensor([2.0, 0.5, 0.0]), torch.tensor([0.0, 0.75, 1.0]))
    tensor([0.0000, 0.7500, 0.2500])
    """
    dim = checked(scores, dim)
    if not _is_surely_valid(upper):
        check_parameter(upper, UPPER)
    bounds = _beside_entries(upper, scores, dim)
    return along_rows(scores, dim, mask, lambda rows: _apply(rows, bounds), bounds)


def _is_surely_valid(upper: object) -> bool:
    """Whether one pass over many bounds shows that they are fine."""
    if not isinstance(upper, Tensor) or not upper.is_floating_point() or not upper.numel():
        return False
    return values_can_be_read(upper) and bool(upper.detach().amin() >= 0)  # NaN compares as False


def _beside_entries(upper: float | Tensor, scores: Tensor, dim: int) -> Tensor:
    """The bounds as a tensor that broadcasts to the scores with ``dim`` moved last."""
    upper = as_floating(upper, scores)
    if upper.ndim == 0:
        return upper
    wide = upper.reshape((1,) * (scores.ndim - upper.ndim) + upper.shape)
    sides = zip(wide.shape, scores.shape, strict=False)
    if upper.ndim > scores.ndim or any(own not in (1, side) for own, side in sides):
        raise ValueError(
            f"expected upper bounds that broadcast to the scores' shape {tuple(scores.shape)}, got "
            f"shape {tuple(upper.shape)}."
        )
    return wide.movedim(dim, -1)
