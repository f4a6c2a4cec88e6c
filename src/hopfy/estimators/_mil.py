"""Multiple instance learning: a label for a bag, and the instances that decided it."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import nn

from hopfy._files.tensors import FileFormat, StoredFile
from hopfy.estimators import _files
from hopfy.estimators._bag_network import (
    BagNetwork,
    GatedAttentionPooling,
    MaxPooling,
    MeanPooling,
    cnn,
    features_after,
    hopfield_pooling,
    mlp,
)
from hopfy.estimators._bags import Bags, pack
from hopfy.estimators._settings import Grouped, Settings
from hopfy.estimators._training import (
    MOVED_TO_TRAINING,
    ClassLoss,
    Labeled,
    ResolvedTraining,
    Training,
    hold_out,
    outputs_of,
    seeded,
    train,
)
from hopfy.omega import Omega

__all__ = ["MILClassifier"]

KIND = FileFormat("hopfy.estimators.MILClassifier", version=2, word="MILClassifier")

_EMBEDDINGS = {"mlp": mlp, "cnn": cnn}
_POOLINGS = ("hopfield", "mean", "max", "gated")


class MILClassifier(ClassifierMixin, Grouped):  # type: ignore[misc]
    r"""A classifier of bags by the instances that matter, pooled by a sparse or structured map.

    Every instance is embedded, a learned query q selects among a bag's embedded instances X with
    weights :math:`\hat y_\Omega(\beta X q)`, and a linear layer classifies what they retrieve
    (Sec. 5.3 of the paper). With ``omega="3-subsets"`` three instances decide; with
    ``"5-normmax"`` as many as look alike; with ``"softmax"`` all of them, a little.

    Bags are a list of arrays (n, ...) of any lengths n: vectors (n, D), images (n, H, W) or
    (n, channels, H, W). A vector counts as a bag of one instance. Every method also takes one array
    of all instances and ``bag_ids``, which name the bag of each; bags then come in the order in
    which their ids appear first.

    Args:
        embedding: ``"mlp"`` (two linear layers with ReLU), ``"cnn"`` (the paper's, for images of at
            least 16 x 16), or a module of your own that turns instances (I, ...) into features
            (I, size). It is copied, so a trained one can be given.
        embedding_size: features of an embedded instance; by default 128, for the CNN 500.
        pooling: ``"hopfield"``, or as a baseline ``"mean"``, ``"max"`` or ``"gated"`` (the gated
            attention of Ilse et al., 2018), which know no omega, beta or heads.
        omega: an `Omega`, its name, or a module such as `hopfy.nn.LearnableAlpha`.
        beta: the inverse temperature, or `hopfy.nn.LearnableBeta`; by default 1 / sqrt(head size).
        heads: how many selections run side by side; with one, a sparse omega may settle early on
            instances that do not matter, and then learns no better.
        head_size: features in which a head compares; by default the heads share the embedding's.
        bag_dropout: the share of the weights dropped while training.
        class_weight: None, ``"balanced"``, or a mapping of classes to weights.
        training: learning rate, epochs, early stopping ...: `Training`. By default AdamW, at most 100
            epochs, and a patience of 10 epochs without a lower validation loss.
        random_state: a seed, or a `numpy.random.RandomState`; the same seed gives the same fit.
        device: where to compute.
        verbose: show a progress bar.

    Attributes:
        classes_: the labels, sorted.
        network_: a torch module, `hopfy.estimators.networks.BagNetwork`.
        history_: a table for each epoch with its losses.
        n_features_in_: numbers in an instance; ``instance_shape_`` is its shape.

    >>> import numpy as np
    >>> from hopfy.estimators import MILClassifier
    >>> generator = np.random.default_rng(0)
    >>> bags = [generator.normal(size=(generator.integers(3, 9), 2)) for _ in range(200)]
    >>> y = np.arange(200) % 2
    >>> for bag, label in zip(bags, y):
    ...     bag[0] += 6 * label  # one instance in a positive bag is different
    >>> clf = MILClassifier(omega="sparsemax", random_state=0).fit(bags, y)
    >>> clf.score(bags, y) > 0.95
    True
    """

    _groups: ClassVar[Mapping[str, type[Settings]]] = {"training": Training}
    _moved: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(MOVED_TO_TRAINING, "training"),
        "lr_decay": "training",
    }

    def __init__(
        self,
        *,
        embedding: str | nn.Module = "mlp",
        embedding_size: int | None = None,
        pooling: str = "hopfield",
        omega: Omega | str | nn.Module = "1.5-entmax",
        beta: float | nn.Module | None = None,
        heads: int = 4,
        head_size: int | None = None,
        bag_dropout: float = 0.0,
        class_weight: str | dict[Any, float] | None = None,
        training: Training | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.embedding = embedding
        self.embedding_size = embedding_size
        self.pooling = pooling
        self.omega = omega
        self.beta = beta
        self.heads = heads
        self.head_size = head_size
        self.bag_dropout = bag_dropout
        self.class_weight = class_weight
        self.training = training
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, bag_ids: Any = None) -> MILClassifier:
        """Learn from bags and their labels, one for each bag."""
        settings = self._training()
        bags = pack(X, bag_ids)
        classes, numbers = _labels(y, len(bags))
        weights = None
        if self.class_weight is not None:
            found = compute_class_weight(self.class_weight, classes=classes, y=classes[numbers])
            weights = torch.as_tensor(found, dtype=torch.float32)
        shape = tuple(bags.instances.shape[1:])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        training, validation = hold_out(len(bags), settings.validation_share, seed, numbers)
        targets = torch.from_numpy(numbers)
        with seeded(seed):
            embedding = self._embedding(shape)
            features = features_after(embedding, bags.instances)
            network = self._network(embedding, features, len(classes))
            self.history_ = train(
                network,
                ClassLoss(weights),
                Labeled(bags, targets, training),
                settings,
                validation=Labeled(bags, targets, validation) if len(validation) else None,
                device=self.device,
                progress=bool(self.verbose),
            )
        self._keep(network, classes, shape, features)
        self.n_iter_ = len(self.history_)
        return self

    def predict_proba(self, X: Any, bag_ids: Any = None) -> np.ndarray[Any, Any]:
        """Probabilities (B, classes) in the order of ``classes_``."""
        bags = self._bags(X, bag_ids)
        network, size = self.network_.to(self.device), self._training().batch_size
        logits = outputs_of(network, bags, size, self.device).double()
        if logits.shape[1] > 1:
            return logits.softmax(-1).numpy()
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], 1).numpy()

    def predict(self, X: Any, bag_ids: Any = None) -> np.ndarray[Any, Any]:
        """The most probable class of each bag."""
        numbers = self.predict_proba(X, bag_ids).argmax(1)
        return self.classes_[numbers]  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any, sample_weight: Any = None, bag_ids: Any = None) -> float:
        """The share of the bags that are classified correctly."""
        right = self.predict(X, bag_ids) == column_or_1d(y)
        return float(np.average(right, weights=sample_weight))

    def instance_weights(self, X: Any, bag_ids: Any = None) -> Any:
        """How much each instance took part in its bag's prediction, the mean over the heads.

        A sparse or structured omega gives exact zeros: those instances took no part. Weights on the
        simplex sum to 1 in a bag, those of k-subsets to k.

        Returns:
            A list of arrays (n,), one for each bag; with ``bag_ids``, one array (I,) in the order of
            the given instances.
        """
        bags = self._bags(X, bag_ids)
        found: list[np.ndarray[Any, Any]] = []
        size, device = self._training().batch_size, self.device
        network = self.network_.to(device).eval()
        with torch.no_grad():
            for start in range(0, len(bags), size):
                numbers = range(start, min(start + size, len(bags)))
                batch = {name: each.to(device) for name, each in bags.batch(numbers).items()}
                rows = network.weights(**batch).mean(1).cpu()
                lengths = bags.lengths[start : numbers.stop].tolist()
                found += [row[:length].numpy() for row, length in zip(rows, lengths, strict=True)]
        if bags.order is None:
            return found
        weights = np.empty(len(bags.instances), dtype=np.float32)
        weights[bags.order] = np.concatenate(found)
        return weights

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted classifier to one file, atomically; nothing in it is executable.

        Modules of your own are not in the file: give them to `load` again. Nor are the device and
        whether to show progress: a loaded classifier is on the CPU until ``set_params`` moves it.
        """
        check_is_fitted(self, "network_")
        parameters = self.get_params(deep=False)
        settings = {
            "parameters": {name: _table(name, parameters[name]) for name in _saved_parameters()},
            "classes": _files.classes_table(self.classes_),
            "instance_shape": list(self.instance_shape_),
            "features": self._features,
        }
        _files.save(path, KIND, self.network_, settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **own: nn.Module) -> MILClassifier:
        """A classifier from its file.

        Args:
            path: what `save` wrote.
            own: the parameters that were modules of your own, by name: ``embedding=...``,
                ``omega=...`` or ``beta=...``. They are copied, and take over the trained values.
        """
        file, _ = _files.open_file(path, KIND)
        try:
            parameters = _parameters(file, own)
            made = cls(**parameters)
            classes = _files.classes_from(file.settings["classes"])
            shape = tuple(file.settings["instance_shape"])
            features = file.settings["features"]
            sizes = (*shape, features)
            if len(classes) < 2 or any(type(size) is not int or size < 1 for size in sizes):
                raise ValueError("expected at least two classes and sizes of at least 1.")
            made._training()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, _OwnModuleError):
                raise ValueError(str(error)) from None
            raise file.error("its settings are not those of a MILClassifier") from None

        def network() -> BagNetwork:
            embedding = made._embedding(shape)
            if (
                "embedding" not in own
                and features_after(embedding, torch.zeros(1, *shape)) != features
            ):
                raise ValueError("its embedding has another size")
            return made._network(embedding, features, len(classes))

        made._keep(_files.build(file, network), classes, shape, features)
        return made

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _training(self) -> ResolvedTraining:
        training: Training = self._group("training")
        return training.resolved()

    def _embedding(self, shape: tuple[int, ...]) -> nn.Module:
        if isinstance(self.embedding, nn.Module):
            return copy.deepcopy(self.embedding).cpu()
        if self.embedding not in _EMBEDDINGS:
            raise ValueError(
                f"expected embedding to be 'mlp', 'cnn' or a module, got {self.embedding!r}."
            )
        make, size = _EMBEDDINGS[self.embedding], _files.plain(self.embedding_size)
        return make(shape) if size is None else make(shape, size)

    def _network(self, embedding: nn.Module, features: int, classes: int) -> BagNetwork:
        head = nn.Linear(features, 1 if classes == 2 else classes)
        return BagNetwork(embedding, self._pooling(features), head)

    def _pooling(self, features: int) -> nn.Module:
        if self.pooling == "mean":
            return MeanPooling()
        if self.pooling == "max":
            return MaxPooling()
        if self.pooling == "gated":
            return GatedAttentionPooling(features, dropout=self.bag_dropout)
        if self.pooling != "hopfield":
            raise ValueError(f"expected pooling to be one of {_POOLINGS}, got {self.pooling!r}.")
        return hopfield_pooling(
            features,
            _files.plain(self.heads),
            omega=copy.deepcopy(self.omega),
            beta=copy.deepcopy(_files.plain(self.beta)),
            head_size=_files.plain(self.head_size),
            dropout=self.bag_dropout,
        )

    def _keep(
        self,
        network: nn.Module,
        classes: np.ndarray[Any, Any],
        shape: tuple[int, ...],
        features: int,
    ) -> None:
        self.network_: Any = network.to(self.device).eval()
        self.classes_ = classes
        self.instance_shape_ = shape
        self.n_features_in_ = int(np.prod(shape))
        self._features = features

    def _bags(self, X: Any, bag_ids: Any) -> Bags:
        check_is_fitted(self, "network_")
        bags = pack(X, bag_ids)
        shape = tuple(bags.instances.shape[1:])
        if shape == self.instance_shape_:
            return bags
        if len(shape) == len(self.instance_shape_) == 1:
            raise ValueError(
                f"X has {shape[0]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        raise ValueError(
            f"expected instances of shape {self.instance_shape_} as in fit, got {shape}."
        )


class _OwnModuleError(ValueError):
    """An argument of load that is missing or has no use."""


def _labels(y: Any, bags: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The classes and each bag's number among them."""
    if y is None:
        raise ValueError(
            "MILClassifier requires y to be passed, but the target y is None; give one label for "
            "each bag."
        )
    labels = column_or_1d(y, warn=True)
    if labels.dtype.kind in "fc":
        assert_all_finite(labels, input_name="y")
    if len(labels) != bags:
        raise ValueError(
            f"expected one label for each of {bags} bags, got {len(labels)} labels; a table of "
            "instances needs bag_ids."
        )
    check_classification_targets(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"expected at least two classes in y, got one class only: {classes[0]!r}.")
    return classes, numbers.astype(np.int64)


def _saved_parameters() -> list[str]:
    """All but those that belong to a machine or a session."""
    names = MILClassifier().get_params(deep=False)
    return [name for name in names if name not in ("device", "verbose")]


def _table(name: str, value: Any) -> Any:
    """A parameter as JSON."""
    if isinstance(value, nn.Module):
        return _files.OWN_MODULE
    if isinstance(value, Omega):
        return _files.omega_table(value)
    return _files.parameter_table(name, value)


def _parameters(file: StoredFile, own: dict[str, nn.Module]) -> dict[str, Any]:
    """The constructor's arguments; KeyError and the like where the table was not written by `save`."""
    parameters = dict(file.settings["parameters"])
    if parameters.keys() != set(_saved_parameters()):
        raise KeyError("other parameters")
    for name, value in parameters.items():
        if value == _files.OWN_MODULE and name not in own:
            raise _OwnModuleError(
                f"expected the module for {name!r} that {str(file.path)!r} was saved with, got "
                f"none; call load(path, {name}=...)."
            )
        if isinstance(value, dict) and "family" in value:
            parameters[name] = _files.omega_from_table(value)
        elif name == "training" and value is not None:
            parameters[name] = _files.settings_from(value, Training)
        elif isinstance(value, dict) and "pairs" in value:
            parameters[name] = {label: float(weight) for label, weight in value["pairs"]}
    for name, module in own.items():
        if parameters.get(name) != _files.OWN_MODULE:
            raise _OwnModuleError(
                f"expected modules for what was saved with one, got {name!r}; leave it out."
            )
        parameters[name] = module
    return parameters
