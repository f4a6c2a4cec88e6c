"""Many bag networks trained side by side: all folds and seeds of one configuration at once.

A network for 200 bags is so small that a training step is all overhead. Here the parameters of M
networks lie in tensors with one more leading dimension, and a step is a step of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hopfy.omega import Omega

__all__ = [
    "BETA",
    "DROPOUT",
    "Batch",
    "Parameters",
    "StackedBags",
    "hopfield_pool",
    "logits",
    "plain_pool",
    "with_relu",
]

Parameters = Mapping[str, Tensor]
Pool = Callable[[Parameters, Tensor, Tensor], Tensor]
BETA, DROPOUT = "beta", "dropout"
"""Names of what is given to each network, (M,), beside its parameters; no dropout: none."""


class Batch(NamedTuple):
    """Some bags of each of M networks: instances (M, I, F), places and mask (M, B, L)."""

    instances: Tensor
    places: Tensor
    mask: Tensor


@dataclass(frozen=True)
class StackedBags:
    """The same bags for M networks, each with features of its own (its fold's scaling).

    Attributes:
        features: (M, total, F), the instances of all bags one after the other; or (1, total, F),
            the same for all networks.
        lengths: (bags,) how many instances each bag has.
    """

    features: Tensor
    lengths: Tensor

    def of(self, networks: Tensor) -> StackedBags:
        """The bags of these networks only."""
        return self if len(self.features) == 1 else replace(self, features=self.features[networks])

    def batch(self, chosen: Tensor) -> Batch:
        """The bags ``chosen`` (M, B), packed: an instance is embedded once, padding never."""
        models = len(chosen)
        starts = self.lengths.cumsum(0) - self.lengths
        lengths = self.lengths[chosen]
        slots = torch.arange(int(lengths.max()))
        mask = slots < lengths.unsqueeze(-1)
        before = lengths.cumsum(1) - lengths
        places = torch.where(mask, before.unsqueeze(-1) + slots, 0)
        sources = starts[chosen].unsqueeze(-1) + slots
        packed = torch.zeros(models, int(lengths.sum(1).max()), dtype=torch.int64)
        owner = torch.arange(models)[:, None, None].expand_as(mask)
        packed[owner[mask], places[mask]] = sources[mask]
        return Batch(_take(self.features, packed), places, mask)


def logits(parameters: Parameters, pool: Pool, batch: Batch) -> Tensor:
    """Logits (M, B) of networks made of `mlp`, a pooling and a linear layer."""
    hidden = _linear(parameters, "embedding.1", batch.instances).relu()
    hidden = _linear(parameters, "embedding.3", hidden).relu()
    pooled = pool(parameters, _take(hidden, batch.places), batch.mask)
    head = "head" if "head.weight" in parameters else "head.1"  # after a ReLU, see `with_relu`
    return _linear(parameters, head, pooled).squeeze(-1)


def hopfield_pool(omega: Omega, heads: int) -> Pool:
    """`HopfieldPooling` with one query, for stacked networks.

    With a single query nothing has to be projected instance by instance: the query moves through
    the memories' projection to the features, and the values are projected after they are pooled.
    The memories' bias and offset add the same to all scores of a head, which no map sees.
    """

    def pool(parameters: Parameters, x: Tensor, mask: Tensor) -> Tensor:
        part = {name.removeprefix("pooling.hopfield."): each for name, each in parameters.items()}
        query, keys, values = (_Projection.of(part, name) for name in _PROJECTIONS)
        if keys.gain is not None:
            x = nn.functional.layer_norm(x, x.shape[-1:])
        asked = query(query.normalized(parameters["pooling.queries"]).squeeze(1))
        toward = _toward(_heads(asked, heads), _heads(keys.weight, heads))
        scores = keys.scaled(toward.unsqueeze(1)) @ x.mT  # (M, B, heads, L)
        scores = scores * parameters[BETA].view(-1, 1, 1, 1)
        allowed = mask.unsqueeze(2)
        # A bag with fewer than k instances takes all of them.
        counts = allowed.sum(-1, keepdim=True).expand(*scores.shape[:-1], 1)
        weights = dropped(omega.clip(counts)(scores, allowed), parameters)
        mass = weights.sum(-1, keepdim=True)
        pooled = values.shifted(values.scaled(weights @ x), mass)
        found = _heads(values.weight, heads) @ pooled.permute(0, 2, 3, 1)  # (M, heads, size, B)
        found = found + mass.permute(0, 2, 3, 1) * _heads(values.bias, heads).unsqueeze(-1)
        out = part["out.weight"] @ found.flatten(1, 2)  # from the left: see `_Product`
        return out.mT + part["out.bias"].unsqueeze(1)

    return pool


_PROJECTIONS = ("queries_in", "memories_in", "values_in")


class _Projection(NamedTuple):
    """M linear layers, each after a layer norm's gain and offset if there is one: W (g x + c) + b.

    The gain is applied where fewest numbers are: to the query that has moved through the memories'
    projection, and to the values that have been pooled, never to the weights.
    """

    weight: Tensor
    bias: Tensor
    gain: Tensor | None = None
    offset: Tensor | None = None

    @classmethod
    def of(cls, part: Parameters, name: str) -> _Projection:
        if f"{name}.weight" in part:
            return cls(part[f"{name}.weight"], part[f"{name}.bias"])
        norm = part[f"{name}.0.weight"], part[f"{name}.0.bias"]
        return cls(part[f"{name}.1.weight"], part[f"{name}.1.bias"], *norm)

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, D) -> (M, E)."""
        product: Tensor = _Product.apply(self.weight, x)  # type: ignore[no-untyped-call]
        return product + self.bias

    def normalized(self, x: Tensor) -> Tensor:
        """The layer norm of x (M, rows, D), gain and offset included."""
        if self.gain is None or self.offset is None:
            return x
        x = nn.functional.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.offset.unsqueeze(1), x, self.gain.unsqueeze(1))

    def scaled(self, x: Tensor) -> Tensor:
        """x (M, B, heads, D) times the gain."""
        return x if self.gain is None else x * self.gain[:, None, None]

    def shifted(self, x: Tensor, mass: Tensor) -> Tensor:
        """x (M, B, heads, D), pooled with weights that sum to ``mass``, plus the offset."""
        return x if self.offset is None else x + mass * self.offset[:, None, None]


class _Product(torch.autograd.Function):
    """Matrices (M, E, D) times one vector each, (M, D) -> (M, E).

    The gradient of a matrix is an outer product, which batched products of matrices are slow at,
    and comes in the layout of the matrix: another one would be copied before the optimizer's step.
    """

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(matrices, vectors)
        return torch.bmm(matrices, vectors.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        matrices, vectors = ctx.saved_tensors
        gradient = gradients[0]
        outer = gradient.unsqueeze(-1) * vectors.unsqueeze(-2)
        return outer, torch.bmm(gradient.unsqueeze(-2), matrices).squeeze(-2)


class _LeftProduct(torch.autograd.Function):
    """One vector each, (M, E), times matrices (M, E, D) -> (M, D); gradients as of `_Product`."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, matrices)
        return torch.bmm(vectors.unsqueeze(-2), matrices).squeeze(-2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        vectors, matrices = ctx.saved_tensors
        gradient = gradients[0]
        outer = vectors.unsqueeze(-1) * gradient.unsqueeze(-2)
        return torch.bmm(matrices, gradient.unsqueeze(-1)).squeeze(-1), outer


def _toward(asked: Tensor, weights: Tensor) -> Tensor:
    """Queries (M, heads, size) through the memories' projections (M, heads, size, D) to (.., D)."""
    vectors, matrices = asked.flatten(0, 1), weights.flatten(0, 1)
    product: Tensor = _LeftProduct.apply(vectors, matrices)  # type: ignore[no-untyped-call]
    return product.view(*weights.shape[:2], -1)


def dropped(weights: Tensor, parameters: Parameters) -> Tensor:
    """Weights (M, ...) of which each network drops a share of its own, if it has one."""
    rate = parameters.get(DROPOUT)
    if rate is None or not bool(rate.any()):
        return weights
    rate = rate.view(-1, *(1,) * (weights.ndim - 1))
    return weights * (torch.rand_like(weights) >= rate) / (1 - rate)


def with_relu(pool: Pool) -> Pool:
    """A ReLU between a pooling and the last layer, as the public code has it."""
    return lambda parameters, x, mask: pool(parameters, x, mask).relu()


def plain_pool(name: str) -> Pool:
    """The baselines ``"mean"``, ``"max"`` and ``"gated"`` for stacked networks."""

    def mean(_: Parameters, x: Tensor, mask: Tensor) -> Tensor:
        weights = mask.to(x.dtype) / mask.sum(-1, keepdim=True)
        return (weights.unsqueeze(-2) @ x).squeeze(-2)

    def largest(_: Parameters, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(-2)

    def gated(parameters: Parameters, x: Tensor, mask: Tensor) -> Tensor:
        content = _linear(parameters, "pooling.content", x).tanh()
        gate = _linear(parameters, "pooling.gate", x).sigmoid()
        scores = (content * gate) @ parameters["pooling.score.weight"].mT.unsqueeze(1)
        weights = scores.squeeze(-1).masked_fill(~mask, -torch.inf).softmax(-1)
        return (dropped(weights, parameters).unsqueeze(-2) @ x).squeeze(-2)

    return {"mean": mean, "max": largest, "gated": gated}[name]


def _heads(x: Tensor, heads: int) -> Tensor:
    """(M, heads * size, ...) -> (M, heads, size, ...)."""
    return x.reshape(len(x), heads, -1, *x.shape[2:])


def _linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    """M linear layers on x (M, ..., D)."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    rows = x.flatten(1, -2)
    return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT).view(*x.shape[:-1], weight.shape[1])


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Rows of x (M, N, D), or of one x (1, N, D) for all, at places (M, ...), as (M, ..., D)."""
    models, count, size = x.shape
    own = torch.arange(models).view(-1, *(1,) * (places.ndim - 1)) * count
    return x.reshape(-1, size).index_select(0, (places + own).flatten()).view(*places.shape, size)
