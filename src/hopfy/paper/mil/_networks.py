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
from hopfy.omega import omega_from
from hopfy.paper._published import MIL
from hopfy.paper.mil._stacked_bags import Pool, hopfield_pool, plain_pool, with_relu

__all__ = ["BASELINES", "METHODS", "BagModel"]

_PUBLIC_DEVIATION = 0.02
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
        public: what else the public code has on the benchmarks: the pooling's weights from
            N(0, 0.02), its biases zero, and a ReLU before the last layer.
        begin: the seed of the initial weights of all folds' networks; None for one of each fold.
    """

    method: str
    size: int
    beta: float = 1.0
    heads: int = 8
    head_size: int = 16
    dropout: float = 0.0
    normalize: bool = False
    public: bool = False
    begin: int | None = None

    def network(self, shape: tuple[int, ...]) -> BagNetwork:
        """For images of 16 x 16 and more the paper's convolutions, for others two linear layers."""
        large = len(shape) == 2 and min(shape) >= 16
        embedding = cnn(shape, self.size) if large else mlp(shape, self.size)
        pooling, head = self._pooling(), nn.Linear(self.size, 1)
        if not self.public:
            return BagNetwork(embedding, pooling, head)
        for name, parameter in pooling.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=_PUBLIC_DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        return BagNetwork(embedding, pooling, nn.Sequential(nn.ReLU(), head))

    def stacked_pool(self) -> Pool:
        """The pooling, and what comes before the last layer, for networks in a stack."""
        if self.method in BASELINES:
            pool = plain_pool(self.method)
        else:
            pool = hopfield_pool(omega_from(self.method), self.heads)
        return with_relu(pool) if self.public else pool

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
