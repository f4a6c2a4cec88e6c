"""What scikit-learn asks of an estimator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfy.memory._arrays import ArrayLike

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Estimator"]


class Estimator:
    """Parameters, scores and tags, so that `clone` and `cross_val_score` work."""

    _given: dict[str, Any]

    if TYPE_CHECKING:

        def predict(self, queries: ArrayLike) -> Any: ...

        def chunks(self, size: int = 1024) -> Iterator[Any]: ...

        def __len__(self) -> int: ...

        def _with_params(self, params: dict[str, Any]) -> Self: ...

    def score(self, queries: ArrayLike, values: ArrayLike) -> float:
        """How well `predict` agrees: accuracy for labels, R² for floating values."""
        predicted, expected = self.predict(queries), values
        predicted = np.asarray(predicted)
        expected = np.asarray(expected)
        if predicted.shape != expected.shape:
            raise ValueError(
                f"expected values of shape {predicted.shape}, as predicted, got {expected.shape}."
            )
        if predicted.dtype.kind != "f":
            right = predicted == expected
            return float(right.reshape(len(right), -1).all(1).mean())
        rest = ((predicted - expected) ** 2).sum()
        return float(1 - rest / ((expected - expected.mean(0)) ** 2).sum())

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """The constructor's arguments, as scikit-learn asks for them."""
        return dict(self._given)

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; what is stored stays. If one is wrong, nothing changes."""
        unknown = set(params) - set(self._given)
        if unknown:
            raise ValueError(f"expected parameters among {sorted(self._given)}, got {unknown}.")
        if params:
            self.__dict__ = self._with_params({**self._given, **params}).__dict__
        return self

    @property
    def classes_(self) -> Any:
        """The different labels that are stored, sorted; for scikit-learn."""
        found = [chunk.values for chunk in self.chunks() if chunk.values is not None]
        if not found:
            raise AttributeError(
                "expected a memory with values for classes_, got one without; pass values to fit or add."
            )
        return np.unique(np.concatenate([np.asarray(values) for values in found]))

    @property
    def n_features_in_(self) -> int:
        """The number of coordinates; for scikit-learn."""
        for chunk in self.chunks(1):
            return int(chunk.patterns.shape[1])
        raise AttributeError(
            "expected a memory with patterns for n_features_in_, got an empty one; add some first."
        )

    def __sklearn_is_fitted__(self) -> bool:
        return len(self) > 0

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )
