"""Training a rationalizer: one epoch with sequential k-subsets beside one with softmax pooling.

The sentences have the lengths of SST's where that is here, else drawn ones like them. Both networks
take every batch in turn, twice, and the faster time of the two counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hopfy import functional as F
from hopfy.bench._layers import Row
from hopfy.paper import data

__all__ = ["bench_rationale"]

_SENTENCES, _BATCH, _WORDS, _SIZE, _HIDDEN = 6_920, 32, 5_000, 50, 200
_ROUNDS = 2
_SHARE, _TEMPERATURE, _TRANSITION = 0.2, 0.1, 0.001


def bench_rationale(progress: Callable[[str], None]) -> list[Row]:
    """The paper's network on 6,920 sentences: a whole epoch, and the map's part of it."""
    from hopfy.estimators.networks import RationaleOptions, build_network

    torch.manual_seed(0)
    options = RationaleOptions(share=_SHARE, temperature=_TEMPERATURE, hidden=_HIDDEN)
    words = nn.Embedding(_WORDS, _SIZE)
    words.weight.requires_grad_(False)
    networks = {
        "sequential": build_network("sequential k-subsets", words, 2, options),
        "softmax": build_network("softmax", words, 2, options),
    }
    batches = _batches()
    _check(networks["sequential"], batches[0])
    steps = {name: _Step(network) for name, network in networks.items()}
    best: dict[str, list[float]] = {name: [] for name in (*steps, "map")}
    for number, batch in enumerate(batches):
        progress(f"rationale: batch {number + 1} of {len(batches)}")
        times = {name: [math.inf] for name in best}
        for _ in range(_ROUNDS):
            for name, step in steps.items():
                times[name].append(_timed(partial(step, *batch)))
            times["map"].append(_timed(_map_alone(networks["sequential"], *batch)))
        for name, own in times.items():
            best[name].append(min(own))
    ours, theirs, alone = sum(best["sequential"]), sum(best["softmax"]), sum(best["map"])
    where = f"{_SENTENCES} sentences, batch {_BATCH}, hidden {_HIDDEN}"
    return [
        Row(f"epoch of sequential k-subsets at {_SHARE:.0%} against softmax, {where}",
            ours, theirs, "s", ours / theirs, 1.5),
        Row(f"the map, forward and backward, within the step, {where}",
            alone, ours, "s", alone / ours, 0.2),
    ]  # fmt: skip


def _lengths() -> np.ndarray[Any, Any]:
    try:
        texts = data.sst("train").texts
    except data.MissingDataError:
        drawn = np.random.default_rng(0).gamma(4.3, 4.5, _SENTENCES)
        return drawn.astype(int).clip(1, 52)
    return np.array([len(text) for text in texts])


def _batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Random words in batches of similar lengths, as in training, in random order."""
    from hopfy.estimators.training import SimilarLengths

    lengths = torch.from_numpy(_lengths())
    order = torch.tensor(list(SimilarLengths(lengths.numpy(), _BATCH)))
    batches = []
    for numbers in order.split(_BATCH):  # type: ignore[no-untyped-call]
        own = lengths[numbers]
        ids = torch.randint(2, _WORDS, (len(own), int(own.max())))
        ids = torch.where(torch.arange(ids.shape[1]) < own[:, None], ids, 0)
        batches.append((ids, own, torch.randint(0, 2, (len(own),))))
    return batches


class _Step:
    """One step of training."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-3)

    def __call__(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.network(ids, lengths), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, 5.0)
        self.optimizer.step()


def _scores(network: Any, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (B, L) that the network's map gets, with a gradient of their own; and its mask."""
    parts = network.pooling.pooling
    with torch.no_grad():
        states = network.encoder(network.embedding(ids), lengths)
        query = parts.hopfield.queries_in(parts.queries) @ parts.hopfield.memories_in.weight
        scores = (states @ query.mT).squeeze(-1) / _TEMPERATURE
    return scores.requires_grad_(), torch.arange(ids.shape[1]) < lengths[:, None]


def _map_alone(network: Any, ids: Tensor, lengths: Tensor, _: Tensor) -> Callable[[], None]:
    scores, mask = _scores(network, ids, lengths)
    k = (_SHARE * lengths).round().clamp_min(1)
    cotangent = torch.randn_like(scores)

    def call() -> None:
        weights = F.sequential_ksubsets(scores, k, _TRANSITION / _TEMPERATURE, mask=mask)
        weights.backward(cotangent)  # type: ignore[no-untyped-call]

    return call


def _check(network: Any, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """The network's weights are those of every sentence on its own."""
    ids, lengths, _ = batch
    network.eval()
    with torch.no_grad():
        weights = network.explain(ids, lengths)[1]
        for row, length in enumerate(lengths.tolist()):
            alone = network.explain(ids[row : row + 1, :length], lengths[row : row + 1])[1]
            torch.testing.assert_close(weights[row, :length], alone[0], atol=1e-3, rtol=0)
    k = (_SHARE * lengths.double()).round().clamp_min(1)
    torch.testing.assert_close(weights.double().sum(-1), k, atol=1e-4, rtol=0)
    network.train()


def _timed(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
