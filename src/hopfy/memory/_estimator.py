"""What scikit-learn asks of an estimator."""

from __future__ import annotations

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
        """Change constructor arguments; the memory must be empty, as `fit` follows."""
        unknown = set(params) - set(self._given)
        if unknown:
            raise ValueError(f"expected parameters among {sorted(self._given)}, got {unknown}.")
        self.__init__(**{**self._given, **params})  # type: ignore[misc]
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )
