"""Train stacked bag networks, each with its own bags, its own best epoch and its own stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from hopfy.paper.mil._stacked_bags import DROPOUT, Batch, Parameters, Pool, StackedBags, logits

__all__ = ["Split", "Stack", "StackedSettings", "area_under_curve", "clip_each", "train_stacked"]


@dataclass(frozen=True)
class StackedSettings:
    """How the networks are trained; ``decay`` multiplies the learning rate after every epoch.

    ``choose`` says which epoch is the best one: that of the largest validation ``"area"``, of the
    lowest validation ``"loss"``, or, whatever the validation bags say, the ``"last"``. With
    ``same_order`` all networks take their bags in the same order of places, as after the same seed.
    """

    lr: float = 1e-3
    decay: float = 0.98
    weight_decay: float = 1e-4
    clip: float = 1.0
    batch_size: int = 16
    max_epochs: int = 50
    patience: int = 5
    choose: str = "area"
    same_order: bool = False

    def __post_init__(self) -> None:
        if self.choose not in ("area", "loss", "last"):
            raise ValueError(f"expected to choose by area, loss or last, got {self.choose!r}.")


class Split(NamedTuple):
    """Numbers of bags, (M, count) each: what every network trains on, stops by, is tested on."""

    training: Tensor
    validation: Tensor
    test: Tensor


class Trained(NamedTuple):
    """Of every network: the areas under the validation and the test curve at its best epoch, that
    epoch, and the parameters it had then."""

    validation: Tensor
    test: Tensor
    epochs: Tensor
    parameters: Parameters

    def parts(self, count: int) -> list[Trained]:
        """So many parts of equal size."""
        found = []
        for numbers in torch.arange(len(self.epochs)).chunk(count):
            own = {name: each[numbers] for name, each in self.parameters.items()}
            found.append(
                Trained(self.validation[numbers], self.test[numbers], self.epochs[numbers], own)
            )
        return found


class Stack(NamedTuple):
    """M networks of one architecture, freshly initialized.

    Attributes:
        networks: as modules.
        pool: what pools their bags.
        given: `BETA` and `DROPOUT` of each, (M,).
    """

    networks: Sequence[nn.Module]
    pool: Pool
    given: Parameters


def train_stacked(
    stack: Stack,
    bags: StackedBags,
    labels: Tensor,
    split: Split,
    settings: StackedSettings,
    generator: torch.Generator,
) -> Trained:
    """Train M networks; test each once, with the parameters of its best validation epoch.

    Args:
        stack: the networks.
        bags: what they read.
        labels: (bags,) 0 or 1.
        split: which bags each of them uses for what. If it has fewer rows than there are networks,
            these are repeated, with the order of the bags: networks that differ in nothing but
            ``stack.given`` see the same.
        settings: those of the optimizer and of early stopping.
        generator: of the order of the bags.

    Of two epochs with the same area under the curve the one with the lower loss is better: 20
    validation bags give few different areas. A network that has stopped leaves the stack.
    """
    parameters, _ = stack_module_state(list(stack.networks))
    models = len(stack.networks)
    repeats = models // len(split.training)
    validation, test = (part.repeat(repeats, 1) for part in (split.validation, split.test))
    best = _Best(parameters, models, settings.patience, settings.choose)
    running = _Running(parameters, settings)
    for _ in range(settings.max_epochs):
        own = bags.of(running.numbers)
        given = {name: each[running.numbers] for name, each in stack.given.items()}
        for chosen in _shuffled(split.training, settings, generator):
            mine = chosen.repeat(repeats, 1)[running.numbers]
            answers = logits({**running.parameters, **given}, stack.pool, own.batch(mine))
            running.step(_losses(answers, labels[mine]))
        held_out = validation[running.numbers]
        answers = _answers(running.parameters, stack.pool, given, own.batch(held_out))
        area = area_under_curve(answers, labels[held_out])
        best.update(running.parameters, area, _losses(answers, labels[held_out]), running.numbers)
        if not running.next_epoch(best.stopped):
            break
    answers = _answers(best.parameters, stack.pool, stack.given, bags.batch(test))
    area = area_under_curve(answers, labels[test])
    return Trained(best.area, area, best.epoch, best.parameters)


def _answers(parameters: Parameters, pool: Pool, given: Parameters, batch: Batch) -> Tensor:
    """Logits without dropout and without a gradient."""
    kept = {name: each for name, each in given.items() if name != DROPOUT}
    with torch.no_grad():
        return logits({**parameters, **kept}, pool, batch)


class _Running:
    """The networks that are still trained, by their ``numbers``, and their optimizer."""

    def __init__(self, parameters: Parameters, settings: StackedSettings) -> None:
        self.parameters = dict(parameters)
        self.numbers = torch.arange(len(next(iter(parameters.values()))))
        self._settings, self._lr = settings, settings.lr
        self._optimizer = self._new_optimizer()

    def step(self, losses: Tensor) -> None:
        """One step of every network against its own loss, (running,)."""
        self._optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        clip_each(list(self.parameters.values()), self._settings.clip)
        self._optimizer.step()

    def next_epoch(self, stopped: Tensor) -> bool:
        """Lower the learning rate, let go of those who have stopped; whether any are left."""
        self._lr *= self._settings.decay
        alive = ~stopped[self.numbers]
        if bool(alive.all()):
            for group in self._optimizer.param_groups:
                group["lr"] = self._lr
            return True
        if not bool(alive.any()):
            return False
        old, states = self.parameters, self._optimizer.state
        self.parameters = {
            name: each.detach()[alive].requires_grad_() for name, each in old.items()
        }
        self._optimizer = self._new_optimizer()
        for name, each in self.parameters.items():
            self._optimizer.state[each] = {
                key: value[alive] if value.ndim else value
                for key, value in states[old[name]].items()
            }
        self.numbers = self.numbers[alive]
        return True

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            list(self.parameters.values()),
            lr=self._lr,
            weight_decay=self._settings.weight_decay,
            fused=True,
        )


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

    def update(
        self, parameters: Parameters, area: Tensor, loss: Tensor, numbers: Tensor | None = None
    ) -> None:
        """After an epoch of the networks with these ``numbers``, all by default."""
        own = torch.arange(len(self.epoch)) if numbers is None else numbers
        self._now += 1
        better = loss < self.loss[own]
        if self._choose == "area":
            better = (area > self.area[own]) | ((area == self.area[own]) & better)
        elif self._choose == "last":
            better = torch.ones_like(better)
        better &= ~self.stopped[own]  # alone it would not be trained any more
        improved = own[better]
        self.waiting[own] += 1
        self.waiting[improved] = 0
        self.area[improved] = area[better].to(self.area.dtype)
        self.loss[improved] = loss[better].to(self.loss.dtype)
        self.epoch[improved] = self._now
        for name, value in parameters.items():
            self.parameters[name][improved] = value.detach()[better]


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
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    whole = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    scale = (largest / whole.clamp_min(1e-6)).clamp_max(1.0)
    if bool((scale == 1.0).all()):
        return
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *(1,) * (gradient.ndim - 1)))


def _losses(answers: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss of each network, (M,)."""
    return nn.functional.binary_cross_entropy_with_logits(
        answers, wanted.to(answers.dtype), reduction="none"
    ).mean(1)


def _shuffled(
    bags: Tensor, settings: StackedSettings, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Every network's bags in an order of its own, or in the same one, in batches (M, size)."""
    rows = 1 if settings.same_order else len(bags)
    order = torch.rand(rows, bags.shape[1], generator=generator).argsort(1).expand_as(bags)
    return torch.split(bags.gather(1, order), settings.batch_size, 1)
