"""scikit-learn's transformers, applied to the instances in bags."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from hopfy.estimators._bags import Bags, pack

__all__ = ["OnInstances"]


class OnInstances(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a transformer on all instances of all bags; transform bag by bag.

    Args:
        transformer: anything of scikit-learn's that turns rows (I, D) into rows (I, D').

    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from hopfy.estimators import MILClassifier, OnInstances
    >>> bags = [np.array([[1.0], [5.0]]), np.array([[5.0], [1.0]])]
    >>> [bag.tolist() for bag in OnInstances(StandardScaler()).fit_transform(bags)]
    [[[-1.0], [1.0]], [[1.0], [-1.0]]]
    >>> model = make_pipeline(OnInstances(StandardScaler()), MILClassifier())
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> OnInstances:  # noqa: ARG002
        """Fit a copy of the transformer; labels belong to bags and are not used."""
        self.transformer_ = clone(self.transformer).fit(_rows(pack(X)))
        return self

    def transform(self, X: Any) -> list[np.ndarray[Any, Any]]:
        """The bags with their instances transformed."""
        check_is_fitted(self, "transformer_")
        bags = pack(X)
        rows = np.asarray(self.transformer_.transform(_rows(bags)))
        return np.split(rows, bags.offsets[1:-1].numpy())


def _rows(bags: Bags) -> np.ndarray[Any, Any]:
    if bags.instances.ndim != 2:
        raise ValueError(
            "expected bags of vectors (n, D) for a transformer, got instances of shape "
            f"{tuple(bags.instances.shape[1:])}; flatten them first."
        )
    return bags.instances.numpy()
