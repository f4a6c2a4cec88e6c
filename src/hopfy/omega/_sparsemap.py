from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import as_mask, as_scores, as_weights, values_can_be_read
from hopfy.omega._base import Omega, _Envelope
from hopfy.structures import KSubsets, Structure

__all__ = ["SparseMAP"]


@dataclass(frozen=True)
class SparseMAP(Omega):
    r"""The SparseMAP regulariser :math:`\Omega(y) = \tfrac12\|y_V\|^2` over a set of structures (Eq. 10).

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

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(
                f"expected SparseMAP of a structure such as KSubsets(k), got {self.structure!r}."
            )

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.sparsemap(scores, self.structure, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        if self.structure.event_dims == 1:
            weights = weights.movedim(dim, -1)
        return self.structure.regulariser(weights)

    @property
    def margin(self) -> float:
        return self.structure.margin

    def conjugate(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        if isinstance(self.structure, KSubsets):
            return super().conjugate(scores, mask, dim=dim)
        rows = self._rows(scores, mask, dim)
        theta, weights, marginals = self._predict(rows)
        score = _Envelope.apply(theta, weights, torch.zeros_like(weights), -1)  # type: ignore[no-untyped-call]
        return (score - self.structure.regulariser(marginals.detach())).to(scores.dtype)  # type: ignore[no-any-return]

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
        if isinstance(self.structure, KSubsets):
            return super().loss(scores, target, mask, dim=dim)
        rows = self._rows(scores, mask, dim)
        target = as_weights(target, scores)
        if self.structure.event_dims == 1:
            target = target.movedim(dim, -1)
        target = target.double()
        factors = self._factor_target(rows, target, factor_target)
        theta, weights, marginals = self._predict(rows)
        wanted = torch.cat([target.flatten(-self.structure.event_dims), factors], -1)
        gap = _Envelope.apply(theta, weights, wanted, -1)  # type: ignore[no-untyped-call]
        omega = self.structure.regulariser
        loss = gap + omega(target) - omega(marginals.detach())
        # Rounding may go below zero by an ulp: lift the value and leave the gradient alone.
        return (loss + (-loss.detach()).clamp_min(0)).to(scores.dtype)  # type: ignore[no-any-return]

    def _rows(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Scores in float64, masked, with the problem in the last dimensions."""
        scores = as_scores(scores)
        if mask is not None:
            scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
        if self.structure.event_dims == 1:
            scores = scores.movedim(dim, -1)
        return scores.double()

    def _predict(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All scores (..., n + f), the prediction for all of them, and its unary part."""
        structure = self.structure
        solution = F.sparsemap_solution(scores, structure)
        rows = structure.rows(scores)
        factor_scores = rows.factor_scores.reshape((*rows.batch, rows.factor_scores.shape[-1]))
        theta = torch.cat([scores.flatten(-structure.event_dims), factor_scores], -1)
        factors = solution.factor_marginals.reshape(factor_scores.shape)
        weights = torch.cat([solution.marginals.flatten(-structure.event_dims), factors], -1)
        return theta, weights, solution.marginals

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
