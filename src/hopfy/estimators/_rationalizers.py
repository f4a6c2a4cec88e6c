"""What the paper's rationalizers are compared with.

Attention that keeps every word (softmax), few (sparsemax) or few neighbors (fusedmax); networks
that hide the words they do not select from the predictor (SPECTRA, HardKuma); and a network with no
rationale at all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from hopfy import functional as F
from hopfy.estimators._rationale_network import (
    BiLSTM,
    Factory,
    RationaleModule,
    RationaleNetwork,
    RationaleOptions,
    Temperature,
    hopfield_network,
    sequential_words,
    word_mask,
)

__all__ = [
    "COMPARED",
    "FusedWords",
    "HardKumaNetwork",
    "MaskingNetwork",
    "MeanOfWords",
    "SpectraNetwork",
    "bilstm_network",
    "fusedmax_network",
    "hardkuma_network",
    "softmax_network",
    "sparsemax_network",
    "spectra_network",
]

_FUSION = 0.1
"""What a unit of difference between neighbors costs in fusedmax, beside scores of about 1."""


class FusedWords(nn.Module):
    """`hopfy.functional.fusedmax` as a map for pooling; (B, 1, 1, L) to the same shape."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        return F.fusedmax(scores, self.strength, mask=mask)

    def extra_repr(self) -> str:
        return f"strength={self.strength:g}"


class MeanOfWords(nn.Module):
    """The mean of states (B, L, D), every word with the same weight: no rationale."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mean (B, D) and the weights (B, L)."""
        weights = mask.to(x.dtype) / mask.sum(-1, keepdim=True).clamp_min(1)
        return (weights.unsqueeze(1) @ x).squeeze(1), weights


def _attention(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions, omega: str | nn.Module
) -> RationaleNetwork:
    """Attention has no budget that a temperature would sharpen: it is 1, always."""
    plain = replace(options, temperature=1.0, test_temperature=1.0)
    return hopfield_network(embedding, outputs, plain, omega)


def softmax_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> RationaleNetwork:
    """The paper's network with softmax pooling: every word has a weight."""
    return _attention(embedding, outputs, options, "softmax")


def sparsemax_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> RationaleNetwork:
    """The paper's network with sparsemax pooling: few words, as many as it likes."""
    return _attention(embedding, outputs, options, "sparsemax")


def fusedmax_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> RationaleNetwork:
    """The paper's network with fusedmax pooling: few words, in groups (Niculae & Blondel, 2017)."""
    return _attention(embedding, outputs, options, FusedWords(_FUSION))


def bilstm_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> RationaleNetwork:
    """The paper's network with the mean of all states instead of a rationale: what is lost by one?"""
    return RationaleNetwork(
        nn.Sequential(embedding, nn.Dropout(options.word_dropout)),
        BiLSTM(embedding.embedding_dim, options.hidden),
        MeanOfWords(),
        nn.Sequential(nn.Dropout(options.dropout), nn.Linear(2 * options.hidden, outputs)),
    )


class MaskingNetwork(RationaleModule):
    """A generator weighs the words; a predictor sees the word vectors times these weights.

    Both are LSTMs in both directions over the same word vectors. The prediction is made from the
    predictor's final states, as in SPECTRA's public code: a hidden word is a zero vector, which says
    where it stands and nothing else. Subclasses weigh.
    """

    def __init__(
        self, embedding: nn.Embedding, outputs: int, options: RationaleOptions, scores: int
    ) -> None:
        super().__init__()
        size = embedding.embedding_dim
        self.embedding = nn.Sequential(embedding, nn.Dropout(options.word_dropout))
        self.generator = BiLSTM(size, options.hidden)
        self.score = nn.Linear(2 * options.hidden, scores)
        self.predictor = BiLSTM(size, options.hidden)
        self.head = nn.Sequential(
            nn.Dropout(options.dropout), nn.Linear(2 * options.hidden, outputs)
        )

    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights (B, L) in [0, 1] of scores (B, L, S), zero on the padding."""
        raise NotImplementedError

    def explain(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mask = word_mask(ids, lengths)
        words = self.embedding(ids)
        weights = self.weigh(self.score(self.generator(words, lengths)), mask)
        states = self.predictor(words * weights.unsqueeze(-1), lengths)
        return self.head(_final_states(states, lengths)), weights


def _final_states(states: Tensor, lengths: Tensor) -> Tensor:
    """What each direction of a `BiLSTM` knows at its end: (B, L, 2 D) -> (B, 2 D)."""
    onward, backward = states.chunk(2, -1)
    last = (lengths - 1).clamp_min(0)
    rows = torch.arange(len(states), device=states.device)
    return torch.cat([onward[rows, last], backward[:, 0]], -1)


class SpectraNetwork(MaskingNetwork):
    """SPECTRA (Guerreiro & Martins, 2021): the mask is the SparseMAP of sequential k-subsets.

    >>> import torch
    >>> network = SpectraNetwork(nn.Embedding(9, 5), 2, RationaleOptions(share=0.5, hidden=4)).eval()
    >>> logits, weights = network.explain(torch.tensor([[4, 2, 5, 3]]), torch.tensor([4]))
    >>> logits.shape, round(float(weights.detach().sum()), 4)
    (torch.Size([1, 2]), 2.0)
    """

    def __init__(self, embedding: nn.Embedding, outputs: int, options: RationaleOptions) -> None:
        super().__init__(embedding, outputs, options, scores=1)
        self.beta = Temperature(options.temperature, options.test_temperature)
        self.select = sequential_words(options, self.beta)

    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights: Tensor = self.select(scores.squeeze(-1) * self.beta(), mask)
        return weights


class HardKumaNetwork(MaskingNetwork):
    r"""HardKuma (Bastings, Aziz & Titov, 2019): gates drawn while training, chosen afterward.

    A gate is :math:`z = \min(1, \max(0, l + (r - l) K))` with a Kumaraswamy variable
    :math:`K = (1 - (1 - U)^{1/b})^{1/a}`, :math:`l = -0.1`, :math:`r = 1.1`: zero and one have
    probabilities of their own, and the expected share of gates that are not zero is known in closed
    form. `penalty` is the distance of this share from ``options.share``.

    After training a gate is 0 or 1 where that is its most likely state, else its mean.
    """

    low, high = -0.1, 1.1
    weight = 1.0
    """What the penalty counts beside the loss. A multiplier that is learned, as in the paper, overshot
    in a short trial until no gate opened any more."""

    def __init__(self, embedding: nn.Embedding, outputs: int, options: RationaleOptions) -> None:
        super().__init__(embedding, outputs, options, scores=2)
        self.share = options.share
        self._penalty: Tensor | float = 0.0

    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        a, b = nn.functional.softplus(scores).clamp(1e-2, 1e2).unbind(-1)
        closed = self.cumulative(a, b, -self.low)
        if self.training:
            gates = self.stretch(self.draw(a, b))
            self._penalty = self.weight * self._distance(closed, mask)
        else:
            gates, self._penalty = self.choose(a, b, closed), 0.0
        return torch.where(mask, gates, 0.0)

    def cumulative(self, a: Tensor, b: Tensor, place: float) -> Tensor:
        """The probability that ``low + (high - low) K`` is below ``place + low``."""
        point = place / (self.high - self.low)
        return 1 - (1 - point**a) ** b

    def draw(self, a: Tensor, b: Tensor) -> Tensor:
        """A Kumaraswamy variable, differentiable in a and b."""
        uniform = torch.rand_like(a).clamp(1e-6, 1 - 1e-6)
        # 1 - (1 - u)^(1/b) with little loss where it is near 0.
        inner = -torch.expm1(torch.log1p(-uniform) / b)
        return inner.clamp_min(1e-12) ** (1 / a)

    def stretch(self, variable: Tensor) -> Tensor:
        """From [0, 1] to [low, high], cut off at 0 and 1."""
        return (self.low + (self.high - self.low) * variable).clamp(0, 1)

    def choose(self, a: Tensor, b: Tensor, closed: Tensor) -> Tensor:
        """0 or 1 where one of them is the likeliest of the three states, else the mean."""
        opened = 1 - self.cumulative(a, b, 1 - self.low)
        between = 1 - closed - opened
        log_mean = torch.lgamma(1 + 1 / a) + torch.lgamma(b) - torch.lgamma(1 + 1 / a + b)
        mean = self.stretch(b * log_mean.exp())
        zero = (closed > opened) & (closed > between)
        one = (opened >= closed) & (opened > between)
        return torch.where(zero, 0.0, torch.where(one, 1.0, mean))

    def _distance(self, closed: Tensor, mask: Tensor) -> Tensor:
        """Of the expected share of open gates, averaged over the texts, from the budget."""
        lengths = mask.sum(-1).clamp_min(1)
        share = (torch.where(mask, 1 - closed, 0.0).sum(-1) / lengths).mean()
        return (share - self.share).abs()

    def penalty(self) -> Tensor | float:
        return self._penalty


def spectra_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> SpectraNetwork:
    """SPECTRA: the predictor sees only what sequential k-subsets select."""
    return SpectraNetwork(embedding, outputs, options)


def hardkuma_network(
    embedding: nn.Embedding, outputs: int, options: RationaleOptions
) -> HardKumaNetwork:
    """HardKuma: the predictor sees words through random gates."""
    return HardKumaNetwork(embedding, outputs, options)


COMPARED: dict[str, Factory] = {
    "SPECTRA": spectra_network,
    "HardKuma": hardkuma_network,
    "sparsemax": sparsemax_network,
    "fusedmax": fusedmax_network,
    "softmax": softmax_network,
    "BiLSTM": bilstm_network,
}
"""By the names that the tables use."""
