"""Training on bags: batches against one bag at a time.

Nothing is timed before its result was checked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from hopfy.bench._timing import best_times

if TYPE_CHECKING:
    from hopfy.estimators._bag_network import BagNetwork
    from hopfy.estimators._bags import Bags

__all__ = ["Row", "bench_mil"]

_BAGS = 32
_FLOOR = 10.0


class Row(NamedTuple):
    """Bags per second in batches and one by one, and their ratio with the floor for it."""

    name: str
    batched: float
    one_by_one: float
    ratio: float
    floor: float


def bench_mil(progress: Callable[[str], None] = lambda _: None, rounds: int = 6) -> list[Row]:
    """Training steps with 32 bags of about 12 instances against steps with one bag.

    A step is all that training does: gradient, clipping and AdamW.
    """
    from hopfy.estimators._bags import Bags

    rows = []
    for omega in ("softmax", "3-subsets"):
        for name, network in _networks(omega).items():
            progress(f"{omega}, {name}")
            shape = (28, 28) if "convolutions" in name else (230,)
            lengths = torch.randint(10, 15, (_BAGS,), generator=torch.Generator().manual_seed(0))
            bags = Bags(torch.randn(int(lengths.sum()), *shape), lengths)
            labels = (torch.arange(_BAGS) % 2).float()
            _check(network, bags, labels)
            rows.append(_compare(f"{omega}, {name}", network, bags, labels, rounds))
    return rows


def _networks(omega: str) -> dict[str, BagNetwork]:
    from hopfy.estimators._bag_network import BagNetwork, cnn, hopfield_pooling, mlp

    torch.manual_seed(0)
    images = BagNetwork(
        cnn((28, 28)), hopfield_pooling(500, 8, omega=omega, head_size=16), nn.Linear(500, 1)
    )
    vectors = BagNetwork(
        mlp((230,), 32), hopfield_pooling(32, 12, omega=omega, head_size=32), nn.Linear(32, 1)
    )
    return {
        "MNIST bags, the paper's convolutions": images,
        "vectors as in Fox, two linear layers": vectors,
    }


def _loss(network: BagNetwork, bags: Bags, numbers: list[int], labels: Tensor) -> Tensor:
    logits = network(**bags.batch(numbers)).squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels[numbers])


def _check(network: BagNetwork, bags: Bags, labels: Tensor) -> None:
    """The gradient of a batch must be the mean of the gradients of its bags."""
    every = list(range(_BAGS))
    parameters = list(network.parameters())
    together = torch.autograd.grad(_loss(network, bags, every, labels), parameters)
    alone = [torch.zeros_like(parameter) for parameter in parameters]
    for number in every:
        own = torch.autograd.grad(_loss(network, bags, [number], labels), parameters)
        for total, gradient in zip(alone, own, strict=True):
            total += gradient / _BAGS
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def _compare(name: str, network: BagNetwork, bags: Bags, labels: Tensor, rounds: int) -> Row:
    fast = copy.deepcopy(network)
    fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    few, every = range(_BAGS // 4), list(range(_BAGS))
    one, all_at_once = _step(network, bags, labels), _step(fast, bags, labels)
    times = best_times(
        {
            "one by one": lambda: [one([number]) for number in few],
            "batched": lambda: all_at_once(every),
        },
        rounds=rounds,
        seconds=30.0,
    )
    ours, theirs = _BAGS / times["batched"], len(few) / times["one by one"]
    return Row(name, ours, theirs, ours / theirs, _FLOOR)


def _step(network: BagNetwork, bags: Bags, labels: Tensor) -> Callable[[list[int]], None]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, weight_decay=1e-4)

    def step(numbers: list[int]) -> None:
        optimizer.zero_grad()
        _loss(network, bags, numbers, labels).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return step
