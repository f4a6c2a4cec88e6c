from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import as_dim, as_weights, masked, values_can_be_read
from hopfy._facts import IndexTarget, Reach
from hopfy.omega._base import Omega, _Envelope
from hopfy.structures import Structure

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SparseMAP"]


@dataclass(frozen=True, eq=False)
class SparseMAP(Omega):
    r"""The SparseMAP regularizer :math:`\Omega(y) = \tfrac12\|y_V\|^2` over a set of structures (Eq. 12).

    Its prediction is `hopfy.functional.sparsemap`. Where the structure has higher-order scores
    :math:`\theta_F` (transitions, pairs) the conjugate and the loss count them:
    :math:`\Omega^*(\theta) = \max_y \langle\theta_V, y_V\rangle + \langle\theta_F, y_F\rangle -
    \Omega(y)`, with exact gradients in both kinds of scores. The structured margin (Prop. 4) is 1 where
    all structures have as many bits: if the best structure leads every other by half their
    distance :math:`\tfrac12\|y - y'\|^2` the prediction is that structure, exactly.

    >>> import torch, hopfy
    >>> omega = hopfy.SparseMAP(hopfy.structures.KSubsets(2))
    >>> omega(torch.tensor([3.0, 2.0, 1.0, -1.0]))
    tensor([1., 1., 0., 0.])
    >>> pairs = hopfy.SparseMAP(hopfy.structures.Matching())
    >>> pairs.loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.eye(2))
    tensor(0.)
    """

    structure: Structure
    family = "sparsemap"

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(
                f"expected SparseMAP of a structure such as KSubsets(k), got {self.structure!r}."
            )

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.sparsemap(scores, self.structure, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return self.structure.regularizer(self._event_last(weights, dim))

    @property
    def closed_form(self) -> tuple[str, float | Tensor] | None:
        return self.structure.closed_form

    @property
    def margin(self) -> float:
        return self.structure.margin

    # ------------------------------------------------------------------ facts: the structure's

    @classmethod
    def _decoded(cls, key: str, value: Any) -> Any:
        return Structure.from_spec(value) if key == "structure" else super()._decoded(key, value)

    @property
    def name(self) -> str:
        return self.structure.name

    @property
    def structures(self) -> Structure:
        return self.structure

    @property
    def event_dims(self) -> int:
        return self.structure.event_dims

    @property
    def varies_by_row(self) -> bool:
        return self.structure.varies_by_row

    def reach(self, beta: float = 1.0) -> Reach | None:
        found = self.structure.reach()
        return None if found is None else found._replace(distance=found.distance / beta)

    @property
    def merges_by_support(self) -> bool:
        return self.structure.merges_by_support

    def exact_margin(self, size: int = 1) -> Fraction | None:
        return self.structure.exact_margin(size)

    @property
    def has_fixed_mass(self) -> bool:
        return self.structure.has_fixed_mass

    @property
    def largest_mass(self) -> float | Tensor | None:
        return self.structure.largest_mass

    def scale_factors(self, scale: float | Tensor) -> Omega:
        return replace(self, structure=self.structure.scale_factors(scale))

    def clip(self, counts: int | Tensor) -> Self:
        return replace(self, structure=self.structure.clip(counts))

    def violation(self, weights: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        present = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask
        weights, present = self._event_last(weights, dim), self._event_last(present, dim)
        return self.structure.violation(weights, present)

    def target_from(
        self, indices: Tensor, scores: Tensor, *, dim: int = -1, ignore_index: int = -100
    ) -> IndexTarget:
        """What the structure's ``target_from`` says; index lists run along ``dim``."""
        last = as_dim(dim, scores.ndim) == scores.ndim - 1
        if last or self.event_dims > 1 or indices.ndim != scores.ndim:
            return self.structure.target_from(indices, scores, ignore_index)
        rows = scores.movedim(dim, -1)
        found = self.structure.target_from(indices.movedim(dim, -1), rows, ignore_index)
        present = None if found.present is None else found.present.movedim(-1, dim)
        return IndexTarget(found.weights.movedim(-1, dim), present)

    def _by_size(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor | float:
        r"""Zero, with the conjugate's gradient in the size k of the structures.

        k moves the answer along the domain: :math:`\langle\theta - \nabla\Omega(y), dy/dk\rangle`.
        """
        if not (torch.is_grad_enabled() and self.requires_grad):
            return 0.0
        theta = masked(scores.detach(), mask)
        weights = self(theta, dim=dim)
        steepness = theta - self.structure.slope(weights.detach())
        moved = weights - weights.detach()
        return torch.where(theta > -torch.inf, steepness * moved, 0.0).sum(dim)

    def _event_last(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor.movedim(dim, -1) if self.event_dims == 1 else tensor

    def rise(self, scores: Tensor, weights: Tensor) -> Tensor:
        if not self.structure.has_factors:
            return super().rise(scores, weights)
        gain = (scores * weights).sum(self.structure.event_axes)
        return gain - self.conjugate(scores) + self.conjugate(self.origin(scores))

    def base_loss(self, scores: Tensor) -> Tensor:
        if not self.structure.has_factors:
            return super().base_loss(scores)
        gain = (scores * self.base_point(scores)).sum(self.structure.event_axes)
        return self.conjugate(scores) - self.conjugate(self.origin(scores)) - gain

    # ------------------------------------------------------------------ conjugate and loss

    def conjugate(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        if self._is_plain:
            return super().conjugate(scores, mask, dim=dim) + self._by_size(scores, mask, dim)
        rows = self._rows(scores, mask, dim)
        theta, weights, marginals = self._predict(rows)
        score = _Envelope.apply(theta, weights, torch.zeros_like(weights), -1)  # type: ignore[no-untyped-call]
        return (score - self.structure.regularizer(marginals.detach())).to(scores.dtype)  # type: ignore[no-any-return]

    def loss(
        self,
        scores: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        *,
        dim: int = -1,
        factor_target: Tensor | None = None,
    ) -> Tensor:
        r"""The Fenchel-Young loss (Eq. 6), reduced over the dimensions of one problem.

        ``target`` holds marginals of structures, shaped like the scores. Where the structure has
        higher-order scores it must be a structure itself (zeros and ones), whose factor bits follow,
        unless ``factor_target`` (..., *factor) gives the factor marginals. The gradient is the
        prediction minus the target, in both kinds of scores.
        """
        if self._is_plain:
            return super().loss(scores, target, mask, dim=dim)
        rows = self._rows(scores, mask, dim)
        target = as_weights(target, scores)
        target = self._event_last(target, dim)
        self._check_target(target, rows, -1)
        target = target.double()
        factors = self._factor_target(rows, target, factor_target)
        theta, weights, marginals = self._predict(rows)
        wanted = torch.cat([target.flatten(-self.structure.event_dims), factors], -1)
        gap = _Envelope.apply(theta, weights, wanted, -1)  # type: ignore[no-untyped-call]
        omega = self.structure.regularizer
        loss = gap + omega(target) - omega(marginals.detach())
        # Rounding may go below zero by an ulp: lift the value and leave the gradient alone.
        return (loss + (-loss.detach()).clamp_min(0)).to(scores.dtype)  # type: ignore[no-any-return]

    def _rows(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Scores in float64, masked, with the problem in the last dimensions."""
        return self._event_last(masked(scores, mask), dim).double()

    @property
    def _is_plain(self) -> bool:
        """Whether Omega is its value at the weights of one dimension, as for any other regularizer."""
        return self.event_dims == 1 and not self.structure.has_factors

    def _predict(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All scores (..., n + f), the prediction for all of them, and its unary part."""
        structure = self.structure
        rows = structure.rows(scores)
        factor_scores = rows.factor_scores.reshape((*rows.batch, rows.factor_scores.shape[-1]))
        marginals, factors = structure.marginals(scores)
        theta = torch.cat([scores.flatten(-structure.event_dims), factor_scores], -1)
        factors = factors.reshape(factor_scores.shape)
        weights = torch.cat([marginals.flatten(-structure.event_dims), factors], -1)
        return theta, weights, marginals

    def _factor_target(
        self, scores: Tensor, target: Tensor, factor_target: Tensor | None
    ) -> Tensor:
        structure = self.structure
        rows = structure.rows(scores.detach())
        size = rows.factor_scores.shape[-1]
        shape = structure.factor_shape(scores.shape[len(rows.batch) :])
        shape = (*rows.batch, *(shape if shape is not None else (size,)))
        if factor_target is not None:
            if factor_target.shape != shape:
                raise ValueError(
                    f"expected a factor_target of shape {shape} for {type(structure).__name__}, got "
                    f"{tuple(factor_target.shape)}."
                )
            return factor_target.double().reshape((*rows.batch, size))
        if size == 0:
            return target.new_zeros((*rows.batch, 0))
        bits = target.detach().reshape(rows.scores.shape)
        fraction = ((bits != 0) & (bits != 1)).flatten(1).any(1)
        if values_can_be_read(fraction) and bool(fraction.any()):
            raise ValueError(
                f"expected a target of zeros and ones for {type(structure).__name__}, whose factor "
                f"bits follow from it, got fractions in {rows.name(int(fraction.nonzero()[0]))}; "
                "pass factor_target as well."
            )
        return structure.factors_of(bits, rows).to(target).reshape((*rows.batch, size))
