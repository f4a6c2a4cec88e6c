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
from hopfy.paper import data

if TYPE_CHECKING:
    from hopfy.estimators import Bags
    from hopfy.estimators.networks import BagNetwork

__all__ = ["Row", "bench_mil"]

_BAGS = 128
_ALONE = 16  # of these bags are trained one by one
_FLOOR = 10.0


class Row(NamedTuple):
    """Bags per second in batches and one by one, and their ratio with the floor for it.

    One by one means torch's own layers and AdamW, a bag in each step, as in the public code; the last
    number is our layers and optimizer one by one.
    """

    name: str
    batched: float
    one_by_one: float
    ratio: float
    floor: float
    our_layers_one_by_one: float


def bench_mil(progress: Callable[[str], None] = lambda _: None, rounds: int = 6) -> list[Row]:
    """Training steps with 128 bags of about 12 instances against steps with one bag.

    A step is all that training does: gradient, clipping and AdamW.
    """
    from hopfy.estimators import Bags

    lengths = torch.randint(10, 15, (_BAGS,), generator=torch.Generator().manual_seed(0))
    digits, kind = _digits(int(lengths.sum()))
    rows = []
    for omega in ("softmax", "3-subsets"):
        images, vectors = _networks(omega)
        name = f"{omega}, bags of {kind}, the paper's convolutions"
        progress(name)
        rows.append(_compare(name, images, Bags(digits, lengths), rounds))
        name = f"{omega}, vectors as in Fox, two linear layers"
        progress(name)
        rows.append(_compare(name, vectors, Bags(torch.randn(len(digits), 230), lengths), rounds))
    return rows


def _digits(count: int) -> tuple[Tensor, str]:
    """Images (count, 28, 28): MNIST's where they are at hand, else random ones."""
    if data.dataset("mnist").where() is None:
        generator = torch.Generator().manual_seed(0)  # no two outputs of a window are nearly equal
        return torch.randn(count, 28, 28, generator=generator), "random pixels"
    images = data.mnist("train").images[:count].float().div(255)
    return (images - 0.1307) / 0.3081, "MNIST digits"


def _networks(omega: str) -> tuple[BagNetwork, BagNetwork]:
    from hopfy.estimators.networks import BagNetwork, cnn, hopfield_pooling, mlp

    torch.manual_seed(0)
    images = BagNetwork(
        cnn((28, 28)), hopfield_pooling(500, 8, omega=omega, head_size=16), nn.Linear(500, 1)
    )
    vectors = BagNetwork(
        mlp((230,), 32), hopfield_pooling(32, 12, omega=omega, head_size=32), nn.Linear(32, 1)
    )
    return images, vectors


def _with_torchs_layers(network: BagNetwork) -> BagNetwork:
    """The same network, with the same parameters, whose convolutions are torch's."""
    from hopfy.estimators.networks import ConvReluPool

    plain = copy.deepcopy(network)
    for name, layer in plain.embedding.named_children():
        if isinstance(layer, ConvReluPool):
            convolution = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size)  # type: ignore[arg-type]
            convolution.load_state_dict(layer.state_dict())
            parts = nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2))
            plain.embedding.add_module(name, parts)
    return plain


def _loss(network: BagNetwork, bags: Bags, numbers: list[int]) -> Tensor:
    logits = network(**bags.batch(numbers)).squeeze(-1)
    labels = torch.tensor(numbers).remainder(2).to(logits.dtype)
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def _check(network: BagNetwork, plain: BagNetwork, bags: Bags) -> None:
    """The gradient of a batch must be the mean of the gradients of its bags."""
    some = list(range(_ALONE))
    together = torch.autograd.grad(_loss(network, bags, some), list(network.parameters()))
    parameters = list(plain.parameters())
    alone = [torch.zeros_like(parameter) for parameter in parameters]
    for number in some:
        own = torch.autograd.grad(_loss(plain, bags, [number]), parameters)
        for total, gradient in zip(alone, own, strict=True):
            total += gradient / _ALONE
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def _compare(name: str, network: BagNetwork, bags: Bags, rounds: int) -> Row:
    plain = _with_torchs_layers(network)
    _check(network, plain, bags)
    every, few = list(range(_BAGS)), range(_ALONE)
    batched = _step(copy.deepcopy(network), bags, fused=True)
    alone, public = _step(network, bags, fused=True), _step(plain, bags, fused=False)
    times = best_times(
        {
            "batched": lambda: batched(every),
            "one by one": lambda: [public([number]) for number in few],
            "our layers one by one": lambda: [alone([number]) for number in few],
        },
        rounds=rounds,
        seconds=30.0,
    )
    ours, theirs, own = (
        count / time for count, time in zip((_BAGS, _ALONE, _ALONE), times.values(), strict=True)
    )
    return Row(name, ours, theirs, ours / theirs, _FLOOR, own)


def _step(network: BagNetwork, bags: Bags, *, fused: bool) -> Callable[[list[int]], None]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, weight_decay=1e-4, fused=fused)

    def step(numbers: list[int]) -> None:
        optimizer.zero_grad()
        _loss(network, bags, numbers).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return step
