"""The network of the authors' public code for Table 3, where it differs from the paper's text.

Layer norms on queries, memories and values set the scale of the scores, the pooled vector is not divided
by the number of selected words, dropout acts on the weights, matrices start with Xavier's uniform
distribution, and the association space has as many features as the LSTM's two directions together.
Two things are not followed: the public code lets padding take part, so that its predictions depend on
the other texts of a batch; and its vectors have 300 dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from hopfy.estimators.networks import (
    BiLSTM,
    RationaleNetwork,
    RationaleOptions,
    ShareOfWords,
    Temperature,
)
from hopfy.nn import HopfieldPooling

__all__ = ["read_in_sequence", "reference_network"]

_Estimator = TypeVar("_Estimator")


class _SumOfWords(nn.Module):
    """The sum of the selected words' values (B, size), and the weights (B, L)."""

    def __init__(self, size: int, omega: nn.Module, beta: nn.Module, dropout: float) -> None:
        super().__init__()
        self.pooling = HopfieldPooling(
            size, omega=omega, beta=beta, dropout=dropout, normalize=True
        )

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        pooled, weights = self.pooling(x, mask=mask, need_weights=True)
        return pooled, weights.flatten(1)


def reference_network(method: str) -> Callable[[nn.Embedding, int, RationaleOptions], Any]:
    """What builds the public code's network for k-subsets or sequential k-subsets."""

    def build(embedding: nn.Embedding, outputs: int, options: RationaleOptions) -> RationaleNetwork:
        beta = Temperature(options.temperature, options.test_temperature)
        omega = ShareOfWords(
            options.share,
            beta,
            options.transition if method == "sequential k-subsets" else None,
            at_test=options.test_transition,
        )
        size = 2 * options.hidden
        pooling = _SumOfWords(size, omega, beta, options.dropout)
        for parameter in pooling.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        head = nn.Linear(size, outputs)
        nn.init.xavier_uniform_(head.weight)
        words = nn.Sequential(embedding, nn.Dropout(options.word_dropout))
        return RationaleNetwork(
            words, BiLSTM(embedding.embedding_dim, options.hidden), pooling, head
        )

    return build


def read_in_sequence(estimator: _Estimator, transition: float) -> _Estimator:
    """A copy of a fitted estimator that selects with sequential k-subsets; the network is the same.

    What ``with_transition`` is for the methods that have a name.
    """
    made: Any = copy.copy(estimator)
    made.network_ = copy.deepcopy(made.network_)
    for module in made.network_.modules():
        if isinstance(module, ShareOfWords):
            module.transition = module.at_test = transition
    read: _Estimator = made
    return read
