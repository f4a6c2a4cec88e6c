"""Rationalizers that draw the words while they train: score function and Gumbel estimators.

They are rows of the paper's long Table 3, from prior work: the generator's scores say how likely a
word is taken, a draw hides the others from the predictor, and the gradient of the expected loss is
estimated. After training the rationale is the most likely one of k words: any k words ("top-k"), or k
words in a row ("contiguous").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hopfy.estimators._rationale_network import Factory, RationaleOptions, words_to_select
from hopfy.estimators._rationalizers import MaskingNetwork

__all__ = [
    "STOCHASTIC",
    "GumbelNetwork",
    "ScoreFunctionNetwork",
    "best_span",
    "best_words",
]

Choice = Callable[[Tensor, Tensor], Tensor]
"""From scores (B, L), -inf on the padding, and budgets (B,) to zeros and ones (B, L)."""


def best_words(scores: Tensor, k: Tensor) -> Tensor:
    """The k words of the largest scores, as zeros and ones (B, L); of equal ones the first.

    >>> best_words(torch.tensor([[0.1, 0.9, -torch.inf, 0.5]]), torch.tensor([2]))
    tensor([[0., 1., 0., 1.]])
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    chosen = (rank < k.unsqueeze(-1)).to(scores.dtype)
    return torch.zeros_like(scores).scatter(-1, order, chosen)


def best_span(scores: Tensor, k: Tensor) -> Tensor:
    """The k words in a row with the largest sum of scores, as zeros and ones (B, L).

    This is what sequential k-subsets tend to as the transition score grows.

    >>> best_span(torch.tensor([[0.9, 0.0, 0.5, 0.6, -torch.inf]]), torch.tensor([2]))
    tensor([[0., 0., 1., 1., 0.]])
    """
    length = scores.shape[-1]
    words = (scores > -torch.inf).sum(-1, keepdim=True)
    finite = scores.clamp_min(torch.finfo(scores.dtype).min / max(length, 1)).double()
    sums = nn.functional.pad(finite.cumsum(-1), (1, 0))
    places = torch.arange(length, device=scores.device)
    width = k.long().unsqueeze(-1)
    ends = (places + width).clamp_max(length)
    totals = sums.gather(-1, ends) - sums[..., :length]
    totals = totals.masked_fill(places + width > words, -torch.inf)
    first = totals.argmax(-1, keepdim=True)
    return ((places >= first) & (places < first + width)).to(scores.dtype)


class _SampledNetwork(MaskingNetwork):
    """Scores of words (B, L); ``choose`` takes the best k of them when the network is not training."""

    def __init__(
        self,
        embedding: nn.Embedding,
        outputs: int,
        options: RationaleOptions,
        choose: Choice = best_words,
    ) -> None:
        super().__init__(embedding, outputs, options, scores=1)
        self.share, self.choose = options.share, choose

    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        scores = scores.squeeze(-1)
        return self.draw(scores, mask) if self.training else self.best(scores, mask)

    def draw(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights (B, L) for training."""
        raise NotImplementedError

    def best(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The rationale of the largest score within the budget, zeros and ones (B, L)."""
        budget = words_to_select(mask.sum(-1), self.share)
        return self.choose(scores.masked_fill(~mask, -torch.inf), budget)


class ScoreFunctionNetwork(_SampledNetwork):
    r"""The score function estimator (Lei, Barzilay & Jaakkola, 2016).

    Words are taken independently, :math:`z_i \sim \text{Bernoulli}(\sigma(s_i))`. With the loss
    :math:`\ell(z)` of a text the gradient of its expectation is estimated by
    :math:`\nabla \ell(z) + (\ell(z) - b)\, \nabla \log p(z)`. The baseline b is a moving average of
    the losses, of which ``memory`` stays after a step; with None it is 0. `penalty` is the distance of
    the expected share of words from ``options.share``; a contiguous rationale adds the expected share
    of places where a word is taken and its neighbor is not.
    """

    average: Tensor

    def __init__(
        self,
        embedding: nn.Embedding,
        outputs: int,
        options: RationaleOptions,
        choose: Choice = best_words,
        memory: float | None = None,
    ) -> None:
        super().__init__(embedding, outputs, options, choose)
        self.memory = memory
        self.register_buffer("average", torch.zeros(()))
        self._log_likelihood: Tensor | None = None
        self._penalty: Tensor | float = 0.0

    def draw(self, scores: Tensor, mask: Tensor) -> Tensor:
        likely = torch.where(mask, scores.sigmoid(), 0.0)
        drawn = torch.bernoulli(likely.detach())
        log_likelihood = -nn.functional.binary_cross_entropy_with_logits(
            scores, drawn, reduction="none"
        )
        self._log_likelihood = torch.where(mask, log_likelihood, 0.0).sum(-1)
        lengths = mask.sum(-1).clamp_min(1)
        self._penalty = ((likely.sum(-1) / lengths).mean() - self.share).abs()
        if self.choose is best_span:
            changes = nn.functional.pad(likely, (1, 1)).diff(dim=-1).abs().sum(-1)
            self._penalty = self._penalty + (changes / lengths).mean()
        return drawn

    def objective(self, losses: Tensor) -> Tensor:
        if not self.training or self._log_likelihood is None:
            return losses.mean()
        advantage = losses.detach() - self.average
        if self.memory is not None:
            mean = losses.detach().mean().to(self.average.dtype)
            self.average.lerp_(mean, 1 - self.memory)
        return (losses + advantage * self._log_likelihood).mean() + self.penalty()

    def penalty(self) -> Tensor | float:
        return self._penalty if self.training else 0.0


class GumbelNetwork(_SampledNetwork):
    r"""Perturbed selections with a straight-through gradient (Jang, Gu & Poole, 2017).

    Logistic noise, the difference of two Gumbel variables, is added to the scores. Forward, the
    predictor sees the best k words of the perturbed scores; backward, it is as if it had seen
    :math:`\sigma(s + \text{noise})`.
    """

    def draw(self, scores: Tensor, mask: Tensor) -> Tensor:
        uniform = torch.rand_like(scores).clamp(1e-6, 1 - 1e-6)
        perturbed = scores + torch.logit(uniform)
        taken = self.best(perturbed.detach(), mask)
        relaxed = torch.where(mask, perturbed.sigmoid(), 0.0)
        return taken + relaxed - relaxed.detach()


_ESTIMATORS: tuple[tuple[str, type[_SampledNetwork], dict[str, Any]], ...] = (
    ("SFE", ScoreFunctionNetwork, {}),
    ("SFE with baseline", ScoreFunctionNetwork, {"memory": 0.9}),
    ("Gumbel", GumbelNetwork, {}),
)
STOCHASTIC: dict[str, Factory] = {
    f"{name}, {rationale}": partial(network, choose=choose, **options)
    for name, network, options in _ESTIMATORS
    for rationale, choose in (("top-k", best_words), ("contiguous", best_span))
}
"""By the names that the tables use."""
