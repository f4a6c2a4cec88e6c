"""The hyperparameters of Table 2: what is tried, and what a point of the grid means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from hopfy.paper.mil._networks import BASELINES, BagModel

__all__ = ["Grid"]

_PUBLIC_SEED = 42
"""The public code sets it before every training."""
_FEATURES = 230
_PER_STEP, _IN_A_SECOND = 7e4, 1.3e5
"""What a step takes besides its parameters, in parameters, and how many of both a network may have whose
ten folds are trained in a second with steps of 16 bags."""


@dataclass(frozen=True)
class Grid:
    """All combinations of these values are tried on the first seed, or those that ``one_at_a_time``
    leaves; one value each means no search.

    Attributes:
        lr: learning rates.
        decay: what the learning rate is multiplied with after every epoch.
        size: features of an embedded instance.
        head_size: the size of queries and memories in a head.
        heads: how many.
        beta: inverse temperatures.
        dropout: bag dropout.
        epochs: the largest number of them.
        patience: epochs without a better validation score before training stops.
        batch_size: bags in a step.
        normalize: layer norms before the Hopfield pooling's projections, as in the public layers.
        last_epoch: on the benchmarks, train all epochs and keep the last one, as the public code does.
        public: on the benchmarks, the networks of the public code, see `BagModel`, with the same
            initial weights and order of the bags in every fold.
        one_at_a_time: not all combinations, but the first value of everything, and every setting
            that differs from it in one value.
    """

    lr: tuple[float, ...]
    decay: tuple[float, ...]
    size: tuple[int, ...]
    head_size: tuple[int, ...]
    heads: tuple[int, ...]
    beta: tuple[float, ...]
    dropout: tuple[float, ...]
    epochs: int = 50
    patience: int = 5
    batch_size: int = 16
    normalize: bool = True
    last_epoch: bool = False
    public: bool = False
    one_at_a_time: bool = False

    def points(self, method: str) -> list[dict[str, Any]]:
        """The points for a method; settings that a baseline does not have are not varied."""
        axes = {name: values for name, values in asdict(self).items() if isinstance(values, tuple)}
        if method in BASELINES:
            without = ("head_size", "heads", "beta", *(("dropout",) if method != "gated" else ()))
            axes.update({name: axes[name][:1] for name in without})
        points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        if not self.one_at_a_time:
            return points
        first = points[0]
        return [p for p in points if sum(p[name] != first[name] for name in axes) <= 1]

    def cost(self, point: Mapping[str, Any]) -> float:
        """About how many seconds of one core ten folds of a benchmark take.

        The optimizer's pass over all parameters is most of a step.
        """
        size, inner = point["size"], point["heads"] * point["head_size"]
        parameters = size * (_FEATURES + size + 4 * inner)
        return float(16 / self.batch_size * (_PER_STEP + parameters) / _IN_A_SECOND)

    def training(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """How the network of a point is trained."""
        training: dict[str, Any] = {
            "lr": point["lr"],
            "decay": point["decay"],
            "max_epochs": self.epochs,
            "patience": self.patience,
            "batch_size": self.batch_size,
        }
        training |= {"choose": "last"} if self.last_epoch else {}
        return training | ({"same_order": True} if self.public else {})

    def model(self, method: str, point: Mapping[str, Any]) -> BagModel:
        """The network of a point."""
        own = ("size", "head_size", "heads", "beta", "dropout")
        chosen: dict[str, Any] = {name: point[name] for name in own}
        if self.public:
            chosen |= {"public": True, "begin": _PUBLIC_SEED}
        return BagModel(method, normalize=self.normalize, **chosen)
