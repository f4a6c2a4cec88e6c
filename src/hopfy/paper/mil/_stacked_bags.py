"""Many bag networks trained side by side: all folds and seeds of one configuration at once.

A network for 200 bags is so small that a training step is all overhead. Here the parameters of M
networks lie in tensors with one more leading dimension, and a step is a step of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hopfy.omega import Omega

__all__ = ["Batch", "Parameters", "StackedBags", "hopfield_pool", "logits", "plain_pool"]

Parameters = Mapping[str, Tensor]
Pool = Callable[[Parameters, Tensor, Tensor], Tensor]


class Batch(NamedTuple):
    """Some bags of each of M networks: instances (M, I, F), places and mask (M, B, L)."""

    instances: Tensor
    places: Tensor
    mask: Tensor


@dataclass(frozen=True)
class StackedBags:
    """The same bags for M networks, each with features of its own (its fold's scaling).

    Attributes:
        features: (M, total, F), the instances of all bags one after the other.
        lengths: (bags,) how many instances each bag has.
    """

    features: Tensor
    lengths: Tensor

    def batch(self, chosen: Tensor) -> Batch:
        """The bags ``chosen`` (M, B), packed: an instance is embedded once, padding never."""
        models = len(self.features)
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
    return _linear(parameters, "head", pooled).squeeze(-1)


def hopfield_pool(omega: Omega, beta: float, heads: int, dropout: float = 0.0) -> Pool:
    """`HopfieldPooling` with one query, for stacked networks.

    With a single query nothing has to be projected instance by instance: the query moves through
    the memories' projection to the features, and the values are projected after they are pooled.
    The memories' bias adds the same to all scores of a head, which no map sees. Layer norms, where
    the networks have them, become a part of the projections, see `_without_norm`.
    """

    def pool(parameters: Parameters, x: Tensor, mask: Tensor) -> Tensor:
        part = {name.removeprefix("pooling.hopfield."): each for name, each in parameters.items()}
        query = parameters["pooling.queries"]
        if "memories_in.0.weight" in part:
            part = _without_norm(part)
            x, query = (nn.functional.layer_norm(each, each.shape[-1:]) for each in (x, query))
        query = _linear(part, "queries_in", query)
        by_head = _heads(query.mT, heads).mT  # (M, heads, 1, head size)
        toward = by_head @ _heads(part["memories_in.weight"], heads)
        scores = beta * (toward.transpose(1, 2) @ x.mT)  # (M, B, heads, L)
        allowed = mask.unsqueeze(2)
        # A bag with fewer than k instances takes all of them.
        counts = allowed.sum(-1, keepdim=True).expand(*scores.shape[:-1], 1)
        weights = omega.clip(counts)(scores, allowed)
        weights = nn.functional.dropout(weights, dropout)
        projection = _heads(part["values_in.weight"], heads)
        found = torch.einsum("mbhd,mhsd->mbhs", weights @ x, projection)
        bias = _heads(part["values_in.bias"], heads).unsqueeze(1)
        found = found + weights.sum(-1, keepdim=True) * bias
        return _linear(part, "out", found.flatten(2))

    return pool


def _without_norm(part: Parameters) -> dict[str, Tensor]:
    """Projections that have a layer norm's gain and offset in them: W (g x + c) + b."""
    merged = dict(part)
    for name in ("queries_in", "memories_in", "values_in"):
        gain, offset = part[f"{name}.0.weight"], part[f"{name}.0.bias"]
        weight, bias = part[f"{name}.1.weight"], part[f"{name}.1.bias"]
        merged[f"{name}.weight"] = weight * gain.unsqueeze(1)
        merged[f"{name}.bias"] = bias + (weight @ offset.unsqueeze(-1)).squeeze(-1)
    return merged


def plain_pool(name: str, dropout: float = 0.0) -> Pool:
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
        weights = nn.functional.dropout(weights, dropout)
        return (weights.unsqueeze(-2) @ x).squeeze(-2)

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
    """Rows of x (M, N, D) at places (M, ...), as (M, ..., D)."""
    models, count, size = x.shape
    own = torch.arange(models).view(-1, *(1,) * (places.ndim - 1)) * count
    return x.reshape(-1, size).index_select(0, (places + own).flatten()).view(*places.shape, size)
