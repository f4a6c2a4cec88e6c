"""The methods of Table 2, the baselines that the paper lacks, and the networks around them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hopfy.estimators.networks import (
    BagNetwork,
    GatedAttentionPooling,
    MaxPooling,
    MeanPooling,
    cnn,
    mlp,
)
from hopfy.nn import HopfieldPooling, Sizes
from hopfy.paper._published import MIL

__all__ = ["BASELINES", "METHODS", "BagModel"]

BASELINES = ("mean", "max", "gated")
METHODS = (*(row.omega for row in MIL), *BASELINES)


@dataclass(frozen=True)
class BagModel:
    """What a network for bags consists of; the last five settings are those of the pooling.

    Attributes:
        method: one of `METHODS`.
        size: the features of an embedded instance.
        beta: the inverse temperature.
        heads: how many.
        head_size: the size of queries and memories in a head, the paper's hidden size.
        dropout: bag dropout, the share of the weights that is dropped while training.
        normalize: layer norms before the Hopfield pooling's projections.
    """

    method: str
    size: int
    beta: float = 1.0
    heads: int = 8
    head_size: int = 16
    dropout: float = 0.0
    normalize: bool = False

    def network(self, shape: tuple[int, ...]) -> BagNetwork:
        """For images of 16 x 16 and more the paper's convolutions, for others two linear layers."""
        large = len(shape) == 2 and min(shape) >= 16
        embedding = cnn(shape, self.size) if large else mlp(shape, self.size)
        return BagNetwork(embedding, self._pooling(), nn.Linear(self.size, 1))

    def _pooling(self) -> nn.Module:
        if self.method == "mean":
            return MeanPooling()
        if self.method == "max":
            return MaxPooling()
        if self.method == "gated":
            return GatedAttentionPooling(self.size, dropout=self.dropout)
        return HopfieldPooling(
            Sizes(self.size, head=self.head_size),
            self.heads,
            omega=self.method,
            beta=self.beta,
            dropout=self.dropout,
            normalize=self.normalize,
        )
