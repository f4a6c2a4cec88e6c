"""Sequential k-subsets: k entries, with a score for selected neighbors."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._checks import Rule, as_parameter
from hopfy._runtime.dispatch import is_tracing
from hopfy.functional._rows import along_rows, checked
from hopfy.functional._sequential_map import weights_of_pairs

__all__ = ["sequential_ksubsets"]


def sequential_ksubsets(
    scores: Tensor,
    k: float | Tensor,
    transition: float | Tensor = 0.0,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Weights in [0, 1] that sum to k and favor neighbors: the SparseMAP

    .. math:: \arg\max_{(y, z)} \theta^\top y + t^\top z
              - \tfrac12 \left(\|y\|^2 + \|1 - y\|^2\right)

    over all mixtures of subsets of k entries (Example 2), where :math:`z_i` is the probability that
    entries i and i + 1 are both selected. Every bit counts in both of its states, so
    ``sequential_ksubsets(scores, k, 0.0) == ksubsets(scores / 2, k)``. A
    `hopfy.structures.FactorGraph` counts each bit once: there the same map has half the scores and
    half the transition (see `hopfy.structures.Sequence`).

    The map first relaxes the problem, in O(N), and proves that the relaxed solution is a mixture of
    subsets; that nearly always succeeds if the row is long and the transition moderate. Otherwise
    an active set with an O(Nk) dynamic program takes over (Niculae et al., 2018) where the
    relaxation leaves a choice; its steps are little more than the fractional entries, so their
    number grows with the temperature. The answer is exact either way, and computed in float64.

    Args:
        scores: any floating tensor; one row of N entries runs along ``dim``.
        k: a whole number from 0 to the number of unmasked entries; a tensor broadcasts over the rows
            (``scores.shape`` without ``dim``, or with size 1 there).
        transition: what a pair of selected neighbors adds (a penalty if negative). A number; a
            tensor (N - 1,) with one score per pair; or tables (N - 1, 2, 2) with the score of every
            state of entries i and i + 1. Leading dimensions broadcast over the rows; size 1 instead
            of N - 1 repeats it for all pairs. What ends in (N - 1, 2, 2) is read as tables.
        dim: the dimension of the sequence. A tensor ``transition`` refers to the scores with it moved
            last.
        mask: True where an entry may be selected; broadcasts to the scores. A pair that touches a
            masked entry adds nothing, so padding changes nothing. A fully masked row gives zeros.

    Returns:
        Weights with the shape and dtype of the scores. Gradients flow to scores and transition, any
        number of times (the map is piecewise linear in both). At a transition of exactly 0 the
        derivative with respect to it is not unique; one possible value is given.

    >>> import torch
    >>> from hopfy import functional as F
    >>> scores = torch.tensor([3.0, 0.0, 2.0, 1.5, 0.0])
    >>> F.sequential_ksubsets(scores, k=2)
    tensor([1.0000, 0.0000, 0.6250, 0.3750, 0.0000])
    >>> F.sequential_ksubsets(scores, k=2, transition=2.0)
    tensor([0.4375, 0.4375, 0.5625, 0.5625, 0.0000])
    """
    if is_tracing():
        raise RuntimeError(
            "expected plain torch operations to trace or to export to ONNX, got sequential k-subsets, "
            "whose solver is compiled code; use torch.compile or torch.export instead."
        )
    dim = checked(scores, dim)
    size = int(scores.shape[dim])
    rule = Rule(
        "k",
        f"to be a whole number from 0 to the row's size {size}",
        lambda k: (k >= 0) & (k <= size) & (k % 1 == 0),
    )
    _check_transition(transition)
    budgets = as_parameter(k, scores, dim, rule).detach()

    def apply(rows: Tensor) -> Tensor:
        unary, edges = _pairwise(rows, transition)
        return weights_of_pairs(unary, edges, budgets).to(rows.dtype)  # type: ignore[no-any-return]

    return along_rows(scores, dim, mask, apply)


def _pairwise(scores: Tensor, transition: float | Tensor) -> tuple[Tensor, Tensor]:
    """The scores (..., N), and edges (..., N - 1) whose leading dimensions broadcast to theirs.

    Tables become edges: with :math:`t = T_{11} - T_{10} - T_{01} + T_{00}`, the rest of a table is
    linear in the two entries and joins their scores.
    """
    pairs = scores.shape[-1] - 1
    if not isinstance(transition, Tensor):
        edges = torch.full((pairs,), float(transition), dtype=torch.float64, device="cpu")
        return scores, edges
    if not _are_tables(transition, pairs):
        return scores, _beside_pairs(transition, scores, (pairs,))
    kept = scores != -torch.inf
    counts = (kept[..., 1:] & kept[..., :-1])[..., None, None]
    tables = _beside_pairs(transition.double(), scores, (pairs, 2, 2))
    none, second, first, both = torch.where(counts, tables, 0.0).flatten(-2).unbind(-1)
    unary = scores.double() + torch.nn.functional.pad(first - none, (0, 1))
    unary = unary + torch.nn.functional.pad(second - none, (1, 0))
    return unary, both - first - second + none


def _are_tables(transition: Tensor, pairs: int) -> bool:
    shape = transition.shape
    return len(shape) >= 3 and shape[-2:] == (2, 2) and shape[-3] in (1, pairs)


def _beside_pairs(transition: Tensor, scores: Tensor, tail: tuple[int, ...]) -> Tensor:
    """The transition with one entry for each pair: (..., *tail)."""
    lead = transition.shape[: max(transition.ndim - len(tail), 0)]
    try:
        transition.expand(*scores.shape[:-1], *tail)  # possible, or an error; the map does it
        return transition.expand(*lead, *tail)
    except RuntimeError:
        raise ValueError(
            "expected transition to be a number, one score per pair (..., N - 1) or tables "
            f"(..., N - 1, 2, 2) for scores of shape {tuple(scores.shape)}, "
            f"got shape {tuple(transition.shape)}."
        ) from None


def _check_transition(transition: object) -> None:
    if isinstance(transition, bool) or not isinstance(transition, int | float | Tensor):
        raise TypeError(f"expected transition to be a number or a tensor, got {transition!r}.")
    if isinstance(transition, Tensor) and not transition.is_floating_point():
        raise TypeError(f"expected transition of a floating dtype, got {transition.dtype}.")
