"""Train stacked bag networks, each with its own bags, its own best epoch and its own stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from hopfy.paper.mil._stacked_bags import Parameters, Pool, StackedBags, logits

__all__ = ["Split", "StackedSettings", "area_under_curve", "clip_each", "train_stacked"]


@dataclass(frozen=True)
class StackedSettings:
    """How the networks are trained; ``decay`` multiplies the learning rate after every epoch.

    ``choose`` says which epoch is the best one: that of the largest validation ``"area"``, of the
    lowest validation ``"loss"``, or, whatever the validation bags say, the ``"last"``.
    """

    lr: float = 1e-3
    decay: float = 0.98
    weight_decay: float = 1e-4
    clip: float = 1.0
    batch_size: int = 16
    max_epochs: int = 50
    patience: int = 5
    choose: str = "area"

    def __post_init__(self) -> None:
        if self.choose not in ("area", "loss", "last"):
            raise ValueError(f"expected to choose by area, loss or last, got {self.choose!r}.")


class Split(NamedTuple):
    """Numbers of bags, (M, count) each: what every network trains on, stops by, is tested on."""

    training: Tensor
    validation: Tensor
    test: Tensor


class Trained(NamedTuple):
    """Of every network: the area under the validation and the test curve at its best epoch."""

    validation: Tensor
    test: Tensor
    epochs: Tensor


def train_stacked(
    networks: Sequence[nn.Module],
    pools: tuple[Pool, Pool],
    bags: StackedBags,
    labels: Tensor,
    split: Split,
    settings: StackedSettings,
    generator: torch.Generator,
) -> Trained:
    """Train M networks; test each once, with the parameters of its best validation epoch.

    Args:
        networks: M of one architecture, freshly initialized.
        pools: their pooling while training (with dropout) and afterward (without).
        bags: what they read.
        labels: (bags,) 0 or 1.
        split: which bags each of them uses for what.
        settings: those of the optimizer and of early stopping.
        generator: of the order of the bags.

    Of two epochs with the same area under the curve the one with the lower loss is better: 20
    validation bags give few different areas.
    """
    parameters, _ = stack_module_state(list(networks))
    best = _Best(parameters, len(networks), settings.patience, settings.choose)
    own = list(parameters.values())
    optimizer = torch.optim.AdamW(
        own, lr=settings.lr, weight_decay=settings.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, settings.decay)
    for _ in range(settings.max_epochs):
        for chosen in _shuffled(split.training, settings.batch_size, generator):
            answers = logits(parameters, pools[0], bags.batch(chosen))
            losses = _losses(answers, labels[chosen])
            optimizer.zero_grad()
            losses.sum().backward()  # type: ignore[no-untyped-call]
            clip_each(own, settings.clip)
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            answers = logits(parameters, pools[1], bags.batch(split.validation))
        wanted = labels[split.validation]
        best.update(parameters, area_under_curve(answers, wanted), _losses(answers, wanted))
        if bool(best.stopped.all()):
            break
    with torch.no_grad():
        answers = logits(best.parameters, pools[1], bags.batch(split.test))
    test = area_under_curve(answers, labels[split.test])
    return Trained(best.area, test, best.epoch)


class _Best:
    """The best epoch of each network before it has waited for a better one too long."""

    def __init__(
        self, parameters: Parameters, models: int, patience: int, choose: str = "area"
    ) -> None:
        self.parameters = {name: value.detach().clone() for name, value in parameters.items()}
        self.area = torch.full((models,), -1.0)
        self.loss = torch.full((models,), torch.inf)
        self.epoch = torch.zeros(models, dtype=torch.int64)
        self.waiting = torch.zeros(models, dtype=torch.int64)
        self._now, self._patience, self._choose = 0, patience, choose

    @property
    def stopped(self) -> Tensor:
        return self.waiting >= self._patience

    def update(self, parameters: Parameters, area: Tensor, loss: Tensor) -> None:
        self._now += 1
        better = loss < self.loss
        if self._choose == "area":
            better = (area > self.area) | ((area == self.area) & better)
        elif self._choose == "last":
            better = torch.ones_like(better)
        better &= ~self.stopped  # alone it would not be trained any more
        self.waiting = torch.where(better, 0, self.waiting + 1)
        self.area = torch.where(better, area, self.area)
        self.loss = torch.where(better, loss, self.loss)
        self.epoch = torch.where(better, self._now, self.epoch)
        for name, value in parameters.items():
            self.parameters[name][better] = value.detach()[better]


def area_under_curve(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of pairs of a positive and a negative bag that are in order, (M, B) -> (M,).

    >>> area_under_curve(torch.tensor([[0.1, 0.4, 0.4, 0.8]]), torch.tensor([[0, 0, 1, 1]]))
    tensor([0.8750])
    """
    pairs = (labels.unsqueeze(-1) > labels.unsqueeze(-2)).to(scores.dtype)
    apart = scores.unsqueeze(-1) - scores.unsqueeze(-2)
    ordered = (apart > 0).to(scores.dtype) + 0.5 * (apart == 0).to(scores.dtype)
    return (ordered * pairs).sum((-1, -2)) / pairs.sum((-1, -2))


def clip_each(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale every network's gradient, over all its parameters, to a norm of at most ``largest``."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients])
    scale = (largest / squares.sum(0).sqrt().clamp_min(1e-6)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *(1,) * (gradient.ndim - 1)))


def _losses(answers: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss of each network, (M,)."""
    return nn.functional.binary_cross_entropy_with_logits(
        answers, wanted.to(answers.dtype), reduction="none"
    ).mean(1)


def _shuffled(bags: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Every network's bags in an order of its own, in batches (M, size)."""
    order = torch.rand(bags.shape, generator=generator).argsort(1)
    return torch.split(bags.gather(1, order), size, 1)
