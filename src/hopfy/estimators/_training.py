"""The training loop of every estimator: a skorch net with one rule for early stopping.

Training stops after ``patience`` epochs in a row that do not improve the validation score, and the
weights of the best epoch come back. Nothing else than the training and the validation samples is
ever looked at, so that a test set stays unseen until it is used, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from skorch import NeuralNet
from skorch.callbacks import (
    Callback,
    EarlyStopping,
    EpochScoring,
    GradientNormClipping,
    LRScheduler,
)
from skorch.helper import predefined_split
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from tqdm.auto import tqdm

from hopfy._checks import check_count
from hopfy.estimators._settings import Settings

__all__ = [
    "MOVED_TO_TRAINING",
    "Batches",
    "ClassLoss",
    "ExponentialDecay",
    "Labeled",
    "ReduceOnPlateau",
    "ResolvedTraining",
    "Samples",
    "Training",
    "hold_out",
    "outputs_of",
    "seeded",
    "train",
]


class Samples(Protocol):
    """What a network can be trained on: samples that come in batches."""

    def __len__(self) -> int: ...

    def batch(self, numbers: Sequence[int]) -> Mapping[str, Tensor]:
        """The arguments of the network's ``forward`` for these samples."""
        ...


@dataclass(frozen=True)
class ExponentialDecay:
    """Multiply the learning rate by ``factor`` after every epoch."""

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def callback(self) -> LRScheduler:
        """For skorch."""
        return LRScheduler(policy=torch.optim.lr_scheduler.ExponentialLR, gamma=self.factor)


@dataclass(frozen=True)
class ReduceOnPlateau:
    """Multiply the learning rate by ``factor`` after ``patience`` epochs of no lower loss."""

    factor: float
    patience: int = 5

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def callback(self) -> LRScheduler:
        """For skorch."""
        return LRScheduler(
            policy=torch.optim.lr_scheduler.ReduceLROnPlateau,
            monitor=_latest_loss,
            factor=self.factor,
            patience=self.patience,
        )


def _check_factor(factor: Any) -> None:
    if isinstance(factor, str) or not 0 < factor <= 1:
        raise ValueError(f"expected a factor above 0 and at most 1, got {factor!r}.")


MOVED_TO_TRAINING = (
    "lr",
    "weight_decay",
    "batch_size",
    "max_epochs",
    "patience",
    "validation_share",
)
"""Parameters that the estimators of version 0.1 had themselves."""
_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
# Devices on which one pass over all parameters makes a step of Adam, which saves a tenth of it.
_FUSED = ("cpu", "cuda")
_AUTO: dict[str, Any] = {
    "max_epochs": 100,
    "patience": 10,
    "clip": 1.0,
    "schedule": None,
    "optimizer": "adamw",
}


class Training(Settings):
    """How a network is trained. ``"auto"`` leaves a choice to the estimator.

    Args:
        lr: the learning rate, which ``schedule`` may change from epoch to epoch.
        schedule: `ExponentialDecay`, `ReduceOnPlateau`, or None for a constant rate.
        weight_decay: that of the optimizer.
        batch_size: samples in a step.
        max_epochs: the largest number of passes over the training samples.
        min_epochs: training does not stop before, whatever the patience.
        patience: epochs without a better validation score before training stops; the parameters of
            the best epoch are restored. None runs all epochs.
        validation_share: the share of the samples that is kept out of training for that; 0 runs all
            epochs.
        clip: the largest norm of the gradient of all parameters; None for any.
        optimizer: ``"adamw"`` or ``"adam"``.

    >>> Training(lr=0.01, schedule=ExponentialDecay(0.98))
    Training(lr=0.01, schedule=ExponentialDecay(factor=0.98))
    """

    def __init__(
        self,
        *,
        lr: float = 1e-3,
        schedule: ExponentialDecay | ReduceOnPlateau | str | None = "auto",
        weight_decay: float = 1e-4,
        batch_size: int = 32,
        max_epochs: int | str = "auto",
        patience: int | str | None = "auto",
        validation_share: float = 0.1,
        clip: float | str | None = "auto",
        optimizer: str = "auto",
        min_epochs: int = 1,
    ) -> None:
        self.lr = lr
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_share = validation_share
        self.clip = clip
        self.optimizer = optimizer
        self.min_epochs = min_epochs

    def resolved(self, **auto: Any) -> ResolvedTraining:
        """Checked settings in which ``auto``, or a general default, replaces every ``"auto"``.

        >>> Training().resolved(max_epochs=30).max_epochs
        30
        """
        chosen = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self.get_params(deep=False).items()
        }
        for name, default in (_AUTO | auto).items():
            if isinstance(chosen[name], str) and chosen[name] == "auto":
                chosen[name] = default
        return ResolvedTraining(**chosen)


@dataclass(frozen=True)
class ResolvedTraining:
    """`Training` without ``"auto"``, checked."""

    lr: float
    schedule: ExponentialDecay | ReduceOnPlateau | None
    weight_decay: float
    batch_size: int
    max_epochs: int
    patience: int | None
    validation_share: float
    clip: float | None
    optimizer: str
    min_epochs: int = 1

    def __post_init__(self) -> None:
        for name in ("max_epochs", "min_epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if name == "patience" and value is None:
                continue
            check_count(value, name)
        for name, lowest in (("lr", "above 0"), ("weight_decay", "of at least 0")):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            enough = number and (value > 0 if lowest == "above 0" else value >= 0)
            if not (enough and value < math.inf):
                raise ValueError(f"expected {name} to be a finite number {lowest}, got {value!r}.")
        if self.optimizer not in _OPTIMIZERS:
            known = " or ".join(repr(name) for name in _OPTIMIZERS)
            raise ValueError(f"expected optimizer to be {known}, got {self.optimizer!r}.")
        if not isinstance(self.schedule, ExponentialDecay | ReduceOnPlateau | None):
            raise TypeError(
                "expected schedule to be ExponentialDecay, ReduceOnPlateau or None, got "
                f"{type(self.schedule).__name__}."
            )


def _latest_loss(net: NeuralNet) -> float:
    epoch = net.history[-1]
    return float(epoch.get("valid_loss", epoch["train_loss"]))


class ClassLoss(nn.Module):
    """Cross-entropy of logits (B, C), or (B, 1) for two classes, and class numbers (B,).

    With ``weights`` (C,) every sample counts as much as its class; the mean is over the counts.
    """

    weights: Tensor | None

    def __init__(self, weights: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, logits: Tensor, classes: Tensor) -> Tensor:
        return self.each(logits, classes).mean()

    def each(self, logits: Tensor, classes: Tensor) -> Tensor:
        """The samples' shares of the loss (B,), whose mean it is."""
        counts = None if self.weights is None else self.weights[classes]
        if logits.shape[-1] != 1:
            losses = nn.functional.cross_entropy(logits, classes, self.weights, reduction="none")
        else:
            losses = nn.functional.binary_cross_entropy_with_logits(
                logits.squeeze(-1), classes.to(logits.dtype), counts, reduction="none"
            )
        return losses if counts is None else losses * (len(counts) / counts.sum())


class _Inputs:
    """Keyword arguments of a network; its length is the number of samples, as skorch counts."""

    def __init__(self, arguments: Mapping[str, Tensor], count: int) -> None:
        self.arguments, self._count = arguments, count

    def __len__(self) -> int:
        return self._count


class Labeled(Dataset[Any]):
    """Samples beside their targets; batches are made whole, not out of single samples."""

    def __init__(
        self,
        samples: Samples,
        targets: Tensor,
        numbers: Sequence[int] | np.ndarray[Any, Any] | None = None,
    ) -> None:
        self.samples, self.targets = samples, targets
        self.numbers = np.arange(len(samples)) if numbers is None else np.asarray(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int | Sequence[int]) -> tuple[_Inputs, Tensor]:
        return self.__getitems__([place] if isinstance(place, int) else place)

    def __getitems__(self, places: Sequence[int]) -> tuple[_Inputs, Tensor]:
        chosen = self.numbers[list(places)].tolist()
        return _Inputs(self.samples.batch(chosen), len(chosen)), self.targets[chosen]


class Batches(Sampler[list[int]]):
    """An order that comes in batches of its own sizes."""


def _as_is(batch: Any) -> Any:
    return batch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Everything random in torch follows ``seed``; afterward the caller's state is back."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def hold_out(
    count: int, share: float, seed: int, classes: np.ndarray[Any, Any] | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers of the training and of the validation samples, each once.

    The ``share`` is rounded, at least 1; classes keep their shares where there are enough samples.
    """
    numbers = np.arange(count)
    if not 0 <= share < 1:
        raise ValueError(f"expected a validation share in [0, 1), got {share!r}.")
    held = max(1, round(share * count))
    if share == 0 or held >= count:
        return numbers, numbers[:0]
    if classes is not None:
        _, sizes = np.unique(classes, return_counts=True)
        if sizes.min() < 2 or min(held, count - held) < len(sizes):
            classes = None
    training, validation = train_test_split(
        numbers, test_size=held, random_state=seed, stratify=classes
    )
    return np.sort(training), np.sort(validation)


class _Net(NeuralNet):  # type: ignore[misc]
    """A net whose module takes a batch's named tensors."""

    def infer(self, x: _Inputs, **_: Any) -> Any:
        return self.module_(**{name: each.to(self.device) for name, each in x.arguments.items()})


class _Bar(Callback):  # type: ignore[misc]
    """One progress bar for all epochs."""

    def on_train_begin(self, net: NeuralNet, **_: Any) -> None:
        self._bar = tqdm(total=net.max_epochs, unit="epoch", desc="training")

    def on_epoch_end(self, net: NeuralNet, **_: Any) -> None:
        epoch = net.history[-1]
        names = ("train_loss", "valid_loss", "valid_score")
        self._bar.set_postfix({name: f"{epoch[name]:.4g}" for name in names if name in epoch})
        self._bar.update()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._bar.close()


def train(
    module: nn.Module,
    loss: nn.Module,
    training: Labeled,
    settings: Training | ResolvedTraining,
    *,
    validation: Labeled | None = None,
    score: Callable[[Tensor, Tensor], float] | None = None,
    order: Sampler[int] | Batches | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> list[dict[str, float]]:
    """Train ``module`` in place; returns what was recorded, one table for each epoch.

    Args:
        module: called with the tensors of a batch as keyword arguments.
        loss: called with the module's outputs and the targets.
        training: what to train on, in an order drawn anew for every epoch.
        settings: how.
        validation: what decides when to stop, and which epoch's weights to keep; without it all
            epochs are run and the last weights stay.
        score: of the outputs and targets of the whole validation set, the higher the better; by
            default the loss decides.
        order: draws the order of the training samples for every epoch, one by one or as `Batches`;
            by default all orders are equal.
        device: where to train.
        progress: show a bar.
    """
    how: ResolvedTraining = settings.resolved() if isinstance(settings, Training) else settings
    stopping = None
    if validation is not None:
        stopping = _early_stopping(how, by_score=score is not None)
    # In the order of their turns at the end of an epoch; stopping ends it, so it comes last.
    callbacks = [
        None if validation is None or score is None else _scoring(score),
        None if how.schedule is None else how.schedule.callback(),
        None if how.clip is None else GradientNormClipping(how.clip),
        _Bar() if progress else None,
        stopping,
    ]
    net = _Net(
        module,
        loss,
        optimizer=_OPTIMIZERS[how.optimizer],
        lr=how.lr,
        optimizer__weight_decay=how.weight_decay,
        optimizer__fused=torch.device(device).type in _FUSED,
        max_epochs=how.max_epochs,
        batch_size=how.batch_size,
        iterator_train__shuffle=order is None,
        iterator_train__sampler=order,
        iterator_train__batch_size=None if isinstance(order, Batches) else how.batch_size,
        iterator_train__collate_fn=_as_is,
        iterator_valid__collate_fn=_as_is,
        train_split=None if validation is None else predefined_split(validation),
        callbacks=[(f"turn_{number}", each) for number, each in enumerate(callbacks) if each],
        device=device,
        verbose=0,
    )
    net.fit(training, None)
    module.eval()
    _check_end(net, stopping)
    names = ("epoch", "train_loss", "valid_loss", "valid_score", "dur")
    return [{name: epoch[name] for name in names if name in epoch} for epoch in net.history]


def _scoring(score: Callable[[Tensor, Tensor], float]) -> EpochScoring:
    def scoring(net: NeuralNet, dataset: Labeled, _: Any) -> float:
        # skorch hands back the outputs of the validation pass here: nothing is computed twice.
        outputs = torch.cat(list(net.forward_iter(dataset)))
        return float(score(outputs, dataset.targets[dataset.numbers.tolist()].to(outputs.device)))

    return EpochScoring(scoring, name="valid_score", lower_is_better=False)


class _Stopping(EarlyStopping):  # type: ignore[misc]
    """Early stopping that waits for ``min_epochs``."""

    misses_: int

    def __init__(self, min_epochs: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.min_epochs = min_epochs

    def on_epoch_end(self, net: NeuralNet, **options: Any) -> None:
        if (
            self.patience > 0 and len(net.history) < self.min_epochs
        ):  # one more miss is not enough yet
            self.misses_ = min(self.misses_, self.patience - 2)
        super().on_epoch_end(net, **options)


def _early_stopping(settings: ResolvedTraining, by_score: bool) -> EarlyStopping:
    return _Stopping(
        settings.min_epochs,
        monitor="valid_score" if by_score else "valid_loss",
        lower_is_better=not by_score,
        patience=-1 if settings.patience is None else settings.patience,
        threshold=0.0,
        threshold_mode="abs",
        load_best=True,
    )


def _check_end(net: NeuralNet, stopping: EarlyStopping | None) -> None:
    """A loss that is not a number, or an interruption by the user, must not look like a success."""
    finished = len(net.history) == net.max_epochs
    if not finished and (stopping is None or stopping.misses_ != stopping.patience):
        raise KeyboardInterrupt
    if not math.isfinite(net.history[-1, "train_loss"]):
        raise ValueError(
            "expected the training loss to stay finite, got "
            f"{net.history[-1, 'train_loss']} in epoch {len(net.history)}; lower the learning "
            "rate or rescale the features."
        )


def outputs_of(
    module: nn.Module, samples: Samples, batch_size: int = 32, device: str = "cpu"
) -> Tensor:
    """The module's outputs for all samples, on the CPU, in evaluation mode."""
    module.eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(samples), batch_size):
            numbers = range(start, min(start + batch_size, len(samples)))
            inputs = samples.batch(list(numbers)).items()
            found.append(module(**{name: each.to(device) for name, each in inputs}).cpu())
    return torch.cat(found)
