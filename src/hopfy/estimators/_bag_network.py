"""A network for bags: embed every instance, pool each bag, classify what was pooled."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hopfy._kernels.conv_pool import conv_relu_pool
from hopfy.nn import HopfieldPooling, Sizes
from hopfy.omega import Omega

__all__ = [
    "BagNetwork",
    "ConvReluPool",
    "GatedAttentionPooling",
    "MaxPooling",
    "MeanPooling",
    "cnn",
    "features_after",
    "hopfield_pooling",
    "mlp",
]


class BagNetwork(nn.Module):
    r"""Logits of bags: ``head(pooling(embedding(instances)))``.

    Args:
        embedding: instances (I, ...) to features (I, ...), flattened to (I, D) here.
        pooling: (B, L, D) and a mask (B, L) to (B, E); with ``need_weights=True`` it returns
            weights (B, heads, queries, L) too, as `HopfieldPooling` does.
        head: (B, E) to logits (B, C), or (B, 1) for two classes.

    >>> import torch
    >>> network = BagNetwork(nn.Linear(5, 8), hopfield_pooling(8, omega="2-subsets"), nn.Linear(8, 1))
    >>> places, mask = torch.tensor([[0, 1, 2], [3, 0, 0]]), torch.tensor([[True] * 3, [True, False, False]])
    >>> network(torch.randn(4, 5), places, mask).shape
    torch.Size([2, 1])
    """

    def __init__(self, embedding: nn.Module, pooling: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embedding, self.pooling, self.head = embedding, pooling, head

    def forward(self, instances: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, C) of packed bags, see `Bags.batch`."""
        pooled = self.pooling(self._padded(instances, places), mask)
        return self.head(pooled)  # type: ignore[no-any-return]

    def weights(self, instances: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """How much each instance takes part, (B, heads, L); zero behind the end of a bag."""
        padded = self._padded(instances, places)
        return self.pooling(padded, mask, need_weights=True)[1].flatten(1, -2)  # type: ignore[no-any-return]

    def _padded(self, instances: Tensor, places: Tensor) -> Tensor:
        features = self.embedding(instances).flatten(1)
        return features.index_select(0, places.flatten()).unflatten(0, places.shape)  # type: ignore[no-any-return]


def hopfield_pooling(
    size: int,
    heads: int = 1,
    *,
    omega: Omega | str | nn.Module,
    beta: float | nn.Module | None = None,
    head_size: int | None = None,
    dropout: float = 0.0,
) -> HopfieldPooling:
    """Pooling (B, L, size) -> (B, size) with one learned query and bag dropout.

    Bag dropout drops a share of the weights while training, so that no single instance can carry a
    bag alone (the paper's appendix on the MIL benchmarks). Without a head size the heads share the
    features, rounded up.
    """
    if head_size is None and isinstance(heads, int) and heads > 0:
        head_size = math.ceil(size / heads)
    return HopfieldPooling(
        Sizes(size, head=head_size), heads, omega=omega, beta=beta, dropout=dropout
    )


class MeanPooling(nn.Module):
    """The mean of a bag's instances.

    >>> import torch
    >>> x, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    >>> MeanPooling()(x, mask)
    tensor([[2.]])
    """

    def forward(self, x: Tensor, mask: Tensor, *, need_weights: bool = False) -> Any:
        weights = mask.to(x.dtype)
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
        pooled = (weights.unsqueeze(-2) @ x).squeeze(-2)
        return (pooled, weights[:, None, None]) if need_weights else pooled


class MaxPooling(nn.Module):
    """The largest value of each feature among a bag's instances.

    An instance's weight is the share of the features that it provides; equal ones share a feature.

    >>> import torch
    >>> x, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    >>> MaxPooling()(x, mask, need_weights=True)
    (tensor([[3.]]), tensor([[[[0., 1., 0.]]]]))
    """

    def forward(self, x: Tensor, mask: Tensor, *, need_weights: bool = False) -> Any:
        there = x.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        pooled = there.max(-2).values
        if not need_weights:
            return pooled
        largest = (there == pooled.unsqueeze(-2)).to(x.dtype)
        share = (largest / largest.sum(-2, keepdim=True)).mean(-1)
        return pooled, share[:, None, None]


class GatedAttentionPooling(nn.Module):
    r"""The gated attention of Ilse, Tomczak and Welling (2018, Eq. 9):
    :math:`\sum_i a_i h_i` with :math:`a = \mathrm{softmax}(w^\top(\tanh(V h_i) \odot \sigma(U h_i)))`.

    Args:
        size: features of an instance.
        hidden: rows of V and U.
        dropout: the share of the weights that is dropped while training.
    """

    def __init__(self, size: int, hidden: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        self.content, self.gate = nn.Linear(size, hidden), nn.Linear(size, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, *, need_weights: bool = False) -> Any:
        scores = self.score(self.content(x).tanh() * self.gate(x).sigmoid()).squeeze(-1)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        pooled = (self.dropout(weights).unsqueeze(-2) @ x).squeeze(-2)
        return (pooled, weights[:, None, None]) if need_weights else pooled


class ConvReluPool(nn.Conv2d):
    r"""A convolution, ReLU and max-pooling of 2 x 2 windows: :math:`\max(0, \max_{2\times2}(w * x + b))`.

    On a CPU all three are one compiled pass, and the gradient visits only the outputs that win their
    window: about three times as fast as the separate layers.

    Args:
        channels: of the images (N, channels, H, W).
        outputs: channels of the result (N, outputs, (H - kernel + 1) // 2, (W - kernel + 1) // 2).
        kernel: side of the convolution's kernel.

    >>> import torch
    >>> ConvReluPool(1, 20, 5)(torch.randn(3, 1, 28, 28)).shape
    torch.Size([3, 20, 12, 12])
    """

    def __init__(self, channels: int, outputs: int, kernel: int) -> None:
        super().__init__(channels, outputs, kernel)

    def forward(self, x: Tensor) -> Tensor:
        return conv_relu_pool(x, self.weight, self.bias)  # type: ignore[arg-type] # never None here


def mlp(shape: tuple[int, ...], size: int = 128) -> nn.Module:
    """Two linear layers with ReLU, the paper's embedding of vectors; images are flattened."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), size),
        nn.ReLU(),
        nn.Linear(size, size),
        nn.ReLU(),
    )


def cnn(shape: tuple[int, ...], size: int = 500) -> nn.Module:
    """The paper's embedding of images (H, W) or (channels, H, W): LeNet as in Ilse et al. (2018).

    Convolution to 20 channels (5 x 5), ReLU, max-pool 2, to 50 channels (5 x 5), ReLU, max-pool 2,
    linear to ``size``, ReLU.

    >>> import torch
    >>> cnn((28, 28))(torch.randn(3, 28, 28)).shape
    torch.Size([3, 500])
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < 16:
        raise ValueError(
            "expected images of shape (H, W) or (channels, H, W) with sides of at least 16 for the "
            f"embedding 'cnn', got instances of shape {shape}; use 'mlp' or your own module."
        )
    channels = shape[0] if len(shape) == 3 else 1
    sides = [((side - 4) // 2 - 4) // 2 for side in shape[-2:]]
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])) if len(shape) == 2 else nn.Identity(),
        ConvReluPool(channels, 20, 5),
        ConvReluPool(20, 50, 5),
        nn.Flatten(),
        nn.Linear(50 * math.prod(sides), size),
        nn.ReLU(),
    )


def features_after(embedding: nn.Module, instances: Tensor) -> int:
    """How many features a user's embedding makes of an instance, tried on one or two of them."""
    training = embedding.training
    with torch.no_grad():
        found: Any = embedding.eval()(instances[:2])
    embedding.train(training)
    count = min(2, len(instances))
    if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != count:
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"expected the embedding to turn {count} instances into features of shape "
            f"({count}, size), got {came}."
        )
    return found[0].numel()
