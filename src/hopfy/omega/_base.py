"""What every regularizer can do, written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hopfy._checks import (
    as_dim,
    as_mask,
    as_scores,
    as_weights,
    domain_tolerance,
    values_can_be_read,
)
from hopfy._facts import Described, IndexTarget, Reach

if TYPE_CHECKING:
    from typing_extensions import Self

    from hopfy.structures import Structure

__all__ = ["Omega"]


class Omega(Described, ABC):
    r"""A convex regularizer :math:`\Omega` with all that the paper derives from it.

    ========================  =====================================================================
    ``omega(scores)``         :math:`\hat y(\theta) = \arg\max_y \theta^\top y - \Omega(y)` (Eq. 3)
    ``omega.value(weights)``  :math:`\Omega(y)`
    ``omega.conjugate(...)``  :math:`\Omega^*(\theta) = \max_y \theta^\top y - \Omega(y)`
    ``omega.loss(...)``       :math:`L(\theta, y) = \Omega(y) + \Omega^*(\theta) - \theta^\top y` (Eq. 6)
    ``omega.margin``          the smallest m of Def. 1; infinite if there is none
    ========================  =====================================================================

    A subclass writes the prediction, the value and the margin; the rest follows. Generic code
    (networks, layers, search, certificates, files) never asks which class it holds. It asks the
    questions below, whose defaults are safe for any map; a subclass that knows more answers more.

    ==========================  ===================================================================
    ``spec()``, ``from_spec``   a JSON-able description and the way back (set ``family``); ``name``
    ``tensors()``               every tensor parameter; ``requires_grad``, ``map_tensors``
    ``event_dims``              how many trailing dimensions of the scores one problem has
    ``varies_by_row``           whether a parameter differs from row to row
    ``is_softmax``              whether every weight is positive and log-sum-exp merges parts
    ``reach(beta)``             where the support must lie
    ``exact_margin(size)``      the lead that makes an answer exact, as a rational number
    ``merges_by_support``       whether parts can be solved alone and merged by their supports
    ``structures``              the set of structures behind a SparseMAP
    ``is_bounded``              whether the weights lie in a bounded set
    ``has_fixed_mass``          whether a constant added to a row changes nothing
    ``largest_mass``            how much weight an answer can have in total
    ``base_point(scores)``      the prediction at zero scores
    ``clip(counts)``            the same map for rows with fewer entries than k
    ``target_from(indices)``    class indices, states, heads, partners or index lists as weights
    ``violation(weights)``      how far weights are outside the domain
    ==========================  ===================================================================
    """

    @property
    def event_dims(self) -> int:
        """How many trailing dimensions of the scores one problem has."""
        return 1

    @property
    def is_softmax(self) -> bool:
        """Whether the map is softmax: never sparse, and merged from parts by log-sum-exp."""
        return False

    def reach(self, beta: float = 1.0) -> Reach | None:  # noqa: ARG002
        r"""Where the support of :math:`\hat y(\beta s)` must lie, in units of s; None: anywhere."""
        return None

    @property
    def is_sparse(self) -> bool:
        """Whether weights can be zero, so that answers are kept on their support."""
        return bool(self.margin != float("inf")) or self.reach() is not None

    def exact_margin(self, size: int = 1) -> Fraction | None:  # noqa: ARG002
        """The lead that makes an answer of ``size`` ones exact; None: no such lead is known."""
        return None

    @property
    def merges_by_support(self) -> bool:
        """Whether an entry that has a weight has one in every part of the entries that contains it.

        So it is where more entries can only raise the threshold below which weights are zero. Then
        the support lies in the union of the supports on parts, and parts can be solved alone.
        """
        return False

    @property
    def structures(self) -> Structure | None:
        """The set of structures whose SparseMAP this is; None for every other map."""
        return None

    @property
    def is_bounded(self) -> bool:
        """Whether the weights lie in a bounded set."""
        return True

    def direction(self, scores: Tensor) -> tuple[Tensor, Tensor | float]:
        """The weights up to a positive factor per row, and its logarithm (..., 1), without overflow."""
        return self(scores), 0.0

    @property
    def has_fixed_mass(self) -> bool:
        """Whether all answers have the same sum, so that a constant added to a row changes nothing."""
        return False

    @property
    def largest_mass(self) -> float | Tensor | None:
        """The largest sum of weights of one answer; None: only bounded by the number of entries."""
        return None

    def base_point(self, scores: Tensor) -> Tensor:
        """The prediction :math:`y_0` at zero scores shaped like ``scores``; rows are shared if equal."""
        return self(self.origin(scores))

    def origin(self, scores: Tensor) -> Tensor:
        """Zero scores: one problem, or as many as there are where parameters vary by row."""
        shape = scores.shape if self.varies_by_row else scores.shape[-self.event_dims :]
        return scores.new_zeros(shape)

    def scale_factors(self, scale: float | Tensor) -> Omega:  # noqa: ARG002
        """The same map with higher-order scores (transitions) times ``scale``, one per row (B, 1)."""
        return self

    def clip(self, counts: int | Tensor) -> Self:  # noqa: ARG002
        """The same map where a row has only ``counts`` (broadcasts to (..., 1)) entries."""
        return self

    def violation(self, weights: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:  # noqa: ARG002
        """How far weights are outside the domain (0: inside, or not known), one number per problem.

        ``mask`` (like the weights) is False where an entry is not there.
        """
        return torch.zeros_like(weights.detach().select(dim, 0))

    def target_from(
        self,
        indices: Tensor,
        scores: Tensor,
        *,
        dim: int = -1,  # noqa: ARG002
        ignore_index: int = -100,  # noqa: ARG002
    ) -> IndexTarget:
        """Integer targets as weights like the scores; ``ignore_index`` removes what it stands for."""
        raise TypeError(
            f"expected a target of weights shaped like the scores {tuple(scores.shape)}, as "
            f"{type(self).__name__} does not say what integers mean; got {indices.dtype}."
        )

    @abstractmethod
    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        """Weights that maximize the regularized score along ``dim``."""

    @abstractmethod
    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        """The regularizer at weights in its domain, reduced over ``dim``."""

    @property
    @abstractmethod
    def margin(self) -> float:
        """Scores that lead all others by this much give an exactly one-hot (k-hot) answer (Eq. 7)."""

    @property
    def closed_form(self) -> tuple[str, float | Tensor] | None:
        """The map's closed form, for kernels that fuse it with the products around it.

        A kind ("softmax", "entmax", "normmax", "ksubsets") and its parameter; None if the map has
        none of these forms.
        """
        return None

    def conjugate(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        r""":math:`\Omega^*(\theta)`, reduced over ``dim``; its gradient is the prediction."""
        scores, dim = _prepare(scores, mask, dim)
        weights = self(scores, dim=dim)
        score = _Envelope.apply(scores, weights, torch.zeros_like(weights), dim)  # type: ignore[no-untyped-call]
        return score - self.value(weights.detach(), dim=dim)  # type: ignore[no-any-return]

    def loss(
        self, scores: Tensor, target: Tensor, mask: Tensor | None = None, *, dim: int = -1
    ) -> Tensor:
        r"""The Fenchel-Young loss :math:`L(\theta, y)`, reduced over ``dim`` (Eq. 6).

        ``target`` holds weights in the domain of the regularizer, shaped like the scores. The loss
        is never negative, zero exactly at the prediction, and its gradient with respect to the
        scores is the prediction minus the target.
        """
        dtype = scores.dtype
        scores, dim = _prepare(scores, mask, dim)
        target = as_weights(target, scores)
        self._check_target(target, scores, dim)
        if dtype in (torch.float16, torch.bfloat16):
            scores, target = scores.float(), target.float()
        weights = self(scores, dim=dim)
        if self.has_fixed_mass and scores.numel():
            # A common shift changes nothing, as both sides carry the same mass, and keeps digits.
            top = scores.detach().amax(dim, keepdim=True)
            scores = scores - torch.where(top.isfinite(), top, 0.0)
        gap = _Envelope.apply(scores, weights, target, dim)  # type: ignore[no-untyped-call]
        loss = gap + self.value(target, dim=dim) - self.value(weights.detach(), dim=dim)
        # Rounding may go below zero by an ulp: lift the value and leave the gradient alone.
        return (loss + (-loss.detach()).clamp_min(0)).to(dtype)  # type: ignore[no-any-return]

    def _check_target(self, target: Tensor, scores: Tensor, dim: int) -> None:
        """Raise a ValueError unless the target lies in the domain."""
        if not values_can_be_read(target) or not target.numel():
            return
        excess = self.violation(target, scores.detach() > -torch.inf, dim=dim)
        if bool((excess > domain_tolerance(target.dtype)).any()):
            raise ValueError(
                f"expected targets in the domain of {self.name} (see its `violation`), got one that "
                f"is {float(excess.max()):.3g} outside; pass indices, or weights that sum as the "
                "predictions do."
            )

    def rise(self, scores: Tensor, weights: Tensor) -> Tensor:
        r""":math:`\Omega(\hat y(\theta)) - \Omega(y_0)` for scores and their prediction, (...).

        Where the regularizer also holds higher-order scores they count; it is never negative.
        """
        return self.value(weights) - self.value(self.base_point(scores))

    def conjugate_gain(self, scores: Tensor) -> Tensor:
        r""":math:`\Omega^*(\theta) - \Omega^*(0)`, (...)."""
        return self.conjugate(scores) - self.conjugate(self.origin(scores))

    def base_loss(self, scores: Tensor) -> Tensor:
        r""":math:`L(\theta; y_0) = \Omega^*(\theta) - \Omega^*(0) - \theta^\top y_0`, (...)."""
        return self.loss(scores, self.base_point(scores))


def _prepare(scores: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, int]:
    scores = as_scores(scores)
    if mask is not None:
        scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
    return scores, as_dim(dim, scores.ndim)


class _Envelope(torch.autograd.Function):
    r""":math:`\theta^\top (y - t)` where y maximizes the regularized score of theta.

    By the envelope theorem y counts as a constant: the gradient in theta is :math:`y - t`. Keeping y
    attached to the graph makes the next derivative the Jacobian of the prediction.
    """

    @staticmethod
    def forward(scores: Tensor, weights: Tensor, target: Tensor, dim: int) -> Tensor:
        difference = weights - target
        return torch.where(difference == 0, 0.0, scores * difference).sum(dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ARG004
        scores, weights, target, ctx.dim = inputs
        ctx.save_for_backward(scores, weights, target)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        scores, weights, target = ctx.saved_tensors
        cotangent = cotangent.unsqueeze(ctx.dim)
        in_target = None
        if ctx.needs_input_grad[2]:
            in_target = -cotangent * torch.where(scores.isfinite(), scores, 0.0)
        return cotangent * (weights - target), None, in_target, None

    generate_vmap_rule = True
