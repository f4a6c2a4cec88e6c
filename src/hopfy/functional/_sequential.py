"""Sequential k-subsets: k entries, with a score for selected neighbours."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hopfy._checks import Rule, as_mask, as_parameter, as_scores
from hopfy._kernels import sequential as kernel
from hopfy._runtime.dispatch import is_compiling, records_gradients, transforms_are_active

__all__ = ["sequential_ksubsets"]

_NO_SECOND_DERIVATIVE = (
    "expected one derivative of sequential_ksubsets when its transition needs gradients, got a "
    "request for the second, which is not available; detach the transition or the gradient."
)


def sequential_ksubsets(
    scores: Tensor,
    k: float | Tensor,
    transition: float | Tensor = 0.0,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Weights in [0, 1] that sum to k and favour neighbours: the SparseMAP

    .. math:: \arg\max_{(y, z)} \theta^\top y + t^\top z
              - \tfrac12 \left(\|y\|^2 + \|1 - y\|^2\right)

    over all mixtures of subsets of k entries (Example 2), where :math:`z_i` is the probability that
    entries i and i + 1 are both selected. Every bit counts in both of its states, so
    ``sequential_ksubsets(scores, k, 0.0) == ksubsets(scores / 2, k)``.

    The map first relaxes the problem, in O(N), and proves that the relaxed solution is a mixture of
    subsets; that nearly always succeeds if the row is long and the transition moderate. Otherwise
    an active set with an O(Nk) dynamic programme takes over (Niculae et al., 2018) where the
    relaxation leaves a choice; its steps are little more than the fractional entries, so their
    number grows with the temperature. The answer is exact either way, and computed in float64.

    Args:
        scores: (..., N), one row along the last dimension.
        k: a whole number from 0 to the number of unmasked entries; a tensor broadcasts over rows.
        transition: what a pair of selected neighbours adds (a penalty if negative). A number; a
            tensor (N - 1,) with one score per pair; or tables (N - 1, 2, 2) with the score of every
            state of entries i and i + 1. Leading dimensions broadcast over the rows; size 1 instead
            of N - 1 repeats it for all pairs. What ends in (N - 1, 2, 2) is read as tables.
        mask: True where an entry may be selected; broadcasts to the scores. A pair that touches a
            masked entry adds nothing, so padding changes nothing. A fully masked row gives zeros.

    Returns:
        Weights with the shape and dtype of the scores. Gradients flow to scores and transition, in
        the scores any number of times, once if the transition needs them too. At a transition of
        exactly 0 the derivative with respect to it is not unique; one possible value is given.

    >>> import torch
    >>> from hopfy import functional as F
    >>> scores = torch.tensor([3.0, 0.0, 2.0, 1.5, 0.0])
    >>> F.sequential_ksubsets(scores, k=2)
    tensor([1.0000, 0.0000, 0.6250, 0.3750, 0.0000])
    >>> F.sequential_ksubsets(scores, k=2, transition=2.0)
    tensor([0.4375, 0.4375, 0.5625, 0.5625, 0.0000])
    """
    size = as_scores(scores).shape[-1]
    rule = Rule(
        "k",
        f"to be a whole number from 0 to the row's size {size}",
        lambda k: (k >= 0) & (k <= size) & (k % 1 == 0),
    )
    k_rows = as_parameter(k, scores, scores.ndim - 1, rule).detach()
    if mask is not None:
        scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
    unary, edges = _pairwise(scores, transition)
    if scores.numel() == 0:
        return scores.clone()
    batch = scores.shape[:-1]
    budgets = k_rows.expand(*batch, 1).reshape(-1).long()
    if scores.ndim == 2:  # a view more in the graph would cost as much as the backward pass
        return _apply(unary, edges, budgets).to(scores.dtype)
    return _apply(unary.reshape(-1, size), edges, budgets).reshape(scores.shape).to(scores.dtype)


def _pairwise(scores: Tensor, transition: float | Tensor) -> tuple[Tensor, Tensor]:
    """The scores, and edges (R, N - 1), or (1, N - 1) where all rows share them.

    Tables become edges: with :math:`t = T_{11} - T_{10} - T_{01} + T_{00}`, the rest of a table is
    linear in the two entries and joins their scores.
    """
    rows, pairs = math.prod(scores.shape[:-1]), scores.shape[-1] - 1
    if isinstance(transition, bool) or not isinstance(transition, int | float | Tensor):
        raise TypeError(f"expected transition to be a number or a tensor, got {transition!r}.")
    if not isinstance(transition, Tensor):
        edges = torch.full((1, max(pairs, 0)), float(transition), dtype=torch.float64)
        return scores, edges
    if not transition.is_floating_point():
        raise TypeError(f"expected transition of a floating dtype, got {transition.dtype}.")
    edges = transition
    if edges.ndim >= 3 and edges.shape[-2:] == (2, 2) and edges.shape[-3] in (1, pairs):
        edges = _rows_of(edges.double(), scores, (pairs, 2, 2))
        kept = scores != -torch.inf
        counts = (kept[..., 1:] & kept[..., :-1]).reshape(rows, pairs, 1, 1)
        edges = torch.where(counts, edges, 0.0).reshape(*scores.shape[:-1], pairs, 4)
        none, second, first, both = edges.unbind(-1)
        unary = scores.double() + torch.nn.functional.pad(first - none, (0, 1))
        unary = unary + torch.nn.functional.pad(second - none, (1, 0))
        return unary, (both - first - second + none).reshape(rows, pairs)
    return scores, _rows_of(edges, scores, (pairs,))


def _rows_of(transition: Tensor, scores: Tensor, tail: tuple[int, ...]) -> Tensor:
    """Expand to (R, *tail), or to (1, *tail) where no dimension belongs to the rows."""
    batch = scores.shape[:-1]
    try:
        if transition.ndim <= len(tail):
            return transition.expand(1, *tail)
        return transition.expand(*batch, *tail).reshape(math.prod(batch), *tail)
    except RuntimeError:
        raise ValueError(
            "expected transition to be a number, one score per pair (..., N - 1) or tables "
            f"(..., N - 1, 2, 2) for scores of shape {tuple(scores.shape)}, "
            f"got shape {tuple(transition.shape)}."
        ) from None


def _apply(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
    if is_compiling():
        return _operator(unary, edges, budgets)  # type: ignore[no-any-return]
    if transforms_are_active():
        return _Transformable.apply(unary, edges, budgets)  # type: ignore[no-any-return,no-untyped-call]
    if records_gradients(unary, edges):
        return _Eager.apply(unary, edges, budgets)  # type: ignore[no-any-return,no-untyped-call]
    return _solve(unary, edges, budgets).y.to(unary)


def _solve(
    unary: Tensor, edges: Tensor, budgets: Tensor, always_active: bool = False
) -> kernel.Solution:
    """Solve in float64 on the CPU; a sentence if a row has fewer entries to select than k."""
    solution = kernel.solve(_plain(unary), _plain(edges), budgets.cpu(), always_active)
    if bool(solution.missing.any()):
        row = int(solution.missing.nonzero()[0, 0])
        k = int(budgets[row])
        raise ValueError(
            f"expected k to be at most the number of unmasked entries, got k = {k} with "
            f"{k - int(solution.missing[row])} of them in row {row}; lower k or change the mask."
        )
    return solution


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64).contiguous()


def _single(tensor: Tensor) -> Tensor:
    """On the CPU, in float32 where that holds every digit."""
    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return tensor.detach().to("cpu", dtype).contiguous()


def _gradients(
    solution: kernel.Solution, edges: Tensor, cotangent: Tensor, wants_edges: bool = True
) -> tuple[Tensor, Tensor]:
    by_scores, by_edges = kernel.vjp(solution, _plain(edges), _single(cotangent), wants_edges)
    if wants_edges:
        by_edges = (by_edges.sum(0, keepdim=True) if len(edges) == 1 else by_edges).to(edges)
    return by_scores.to(cotangent), by_edges


def _wants_subsets(edges: Tensor, needs_edges: bool) -> bool:
    """At t = 0 the pairs' gradient depends on the mixture, which the relaxation does not list."""
    return needs_edges and bool((edges == 0).any())


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
        solution = _solve(unary, edges, budgets, _wants_subsets(edges, ctx.needs_input_grad[1]))
        ctx.save_for_backward(edges)
        ctx.solution = solution  # neither an input nor the output: no need to track its versions
        return solution.y.to(unary, copy=True)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (edges,) = ctx.saved_tensors
        needs_edges, again = ctx.needs_input_grad[1], torch.is_grad_enabled()
        if again and not needs_edges:
            return _Jacobian.apply(cotangent, edges, ctx.solution), None, None  # type: ignore[no-untyped-call]
        gradients = _gradients(ctx.solution, edges, cotangent, needs_edges)
        if again:
            gradients = _Once.apply(cotangent, *gradients)  # type: ignore[no-untyped-call]
        return gradients[0], gradients[1] if needs_edges else None, None


class _Jacobian(torch.autograd.Function):
    """The product with the scores' Jacobian, which is symmetric and locally constant."""

    @staticmethod
    def forward(ctx: Any, cotangent: Tensor, edges: Tensor, solution: kernel.Solution) -> Tensor:
        ctx.save_for_backward(edges)
        ctx.solution = solution
        return _gradients(solution, edges, cotangent, False)[0]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (edges,) = ctx.saved_tensors
        again = _Jacobian.apply(cotangent, edges, ctx.solution)  # type: ignore[no-untyped-call]
        return again, None, None


class _Once(torch.autograd.Function):
    """Gradients that refuse to be differentiated."""

    @staticmethod
    def forward(ctx: Any, cotangent: Tensor, *gradients: Tensor) -> Any:  # noqa: ARG004
        return tuple(gradient.clone() for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError(_NO_SECOND_DERIVATIVE)


@torch.library.custom_op(
    "hopfy::sequential_ksubsets",
    mutates_args=(),
    schema="(Tensor unary, Tensor edges, Tensor budgets) -> Tensor",
)
def _operator(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
    return _solve(unary, edges, budgets).y.to(unary)


@torch.library.custom_op(
    "hopfy::sequential_ksubsets_vjp",
    mutates_args=(),
    schema="(Tensor unary, Tensor edges, Tensor budgets, Tensor cotangent) -> (Tensor, Tensor)",
)
def _operator_vjp(
    unary: Tensor, edges: Tensor, budgets: Tensor, cotangent: Tensor
) -> tuple[Tensor, Tensor]:
    # The active sets' sizes depend on the numbers, so a graph cannot hold them: solve again.
    solution = _solve(unary, edges, budgets, _wants_subsets(edges, True))
    return _gradients(solution, edges, cotangent)


@_operator.register_fake
def _(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
    return torch.empty_like(unary, memory_format=torch.contiguous_format)


@_operator_vjp.register_fake
def _(
    unary: Tensor,
    edges: Tensor,
    budgets: Tensor,
    cotangent: Tensor,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(unary), torch.empty_like(edges)


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _operator_backward(ctx: Any, cotangent: Tensor) -> Any:
    return *_operator_vjp(*ctx.saved_tensors, cotangent), None


_operator.register_autograd(_operator_backward, setup_context=_keep_inputs)


class _Transformable(torch.autograd.Function):
    """For `torch.func`: solves again in the backward pass, as the operator does."""

    @staticmethod
    def forward(unary: Tensor, edges: Tensor, budgets: Tensor) -> Tensor:
        return _solve(unary, edges, budgets).y.to(unary)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return *_TransformableVjp.apply(*ctx.saved_tensors, cotangent), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        unary, edges, budgets = _unfolded(info.batch_size, in_dims, inputs)
        y = _Transformable.apply(*_folded(unary, edges, budgets))  # type: ignore[no-untyped-call]
        return y.reshape(unary.shape), 0


class _TransformableVjp(torch.autograd.Function):
    @staticmethod
    def forward(
        unary: Tensor, edges: Tensor, budgets: Tensor, cotangent: Tensor
    ) -> tuple[Tensor, Tensor]:
        solution = _solve(unary, edges, budgets, _wants_subsets(edges, True))
        return _gradients(solution, edges, cotangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError(_NO_SECOND_DERIVATIVE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        unary, edges, budgets, cotangent = _unfolded(info.batch_size, in_dims, inputs)
        folded = _folded(unary, edges, budgets)
        apply = _TransformableVjp.apply
        by_scores, by_edges = apply(*folded, cotangent.flatten(0, 1))  # type: ignore[no-untyped-call]
        by_edges = by_edges.reshape(*unary.shape[:2], -1)
        if edges.shape[1] == 1:
            by_edges = by_edges.sum(1, keepdim=True)
        return (by_scores.reshape(unary.shape), by_edges), (0, 0)


def _unfolded(size: int, in_dims: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Every input with the mapped dimension first."""
    return [
        part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0)
        for part, dim in zip(inputs, in_dims, strict=True)
    ]


def _folded(unary: Tensor, edges: Tensor, budgets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mapped dimension becomes rows; every row gets edges of its own."""
    edges = edges.expand(*unary.shape[:2], edges.shape[-1])
    return unary.flatten(0, 1), edges.flatten(0, 1), budgets.flatten(0, 1)
