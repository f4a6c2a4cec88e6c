"""Parameters that belong together, as one parameter of an estimator.

An estimator takes ``training=Training(lr=0.01)``; scikit-learn's nested names reach the parts:
``set_params(training__lr=0.01)``, ``GridSearchCV(..., {"training__lr": [0.01, 0.001]})``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.base import BaseEstimator

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Grouped", "Selection", "Settings", "Words"]


class _Checked(BaseEstimator):  # type: ignore[misc]
    """Parameters whose names are checked, nested ones included, before any of them is set."""

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters; ValueError, and nothing is set, if there is no such parameter."""
        self._check_names(parameters)
        super().set_params(**parameters)
        return self

    def _check_names(self, parameters: Mapping[str, Any]) -> None:
        known = self.get_params(deep=False) | parameters
        for name in parameters:
            first, _, rest = name.partition("__")
            if first not in self._get_param_names():
                raise self._invalid(name)
            if not rest:
                continue
            if isinstance(known[first], _Checked):
                known[first]._check_names({rest: parameters[name]})
            elif isinstance(known[first], type) or not hasattr(known[first], "set_params"):
                raise self._invalid(name, f" {first} is {known[first]!r}, which has no parameters.")

    def _invalid(self, name: str, reason: str = "") -> ValueError:
        valid = sorted(self.get_params())
        return ValueError(
            f"Invalid parameter {name!r} for estimator {self}.{reason} Valid parameters are: {valid}."
        )


class Settings(_Checked):
    """A group of parameters; equal if all of them are."""

    def __eq__(self, other: object) -> bool:
        same = type(self) is type(other)
        return same and bool(self.get_params() == other.get_params())  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class Words(Settings):
    """Which words a model of texts knows.

    Args:
        keep_words: how many of the most frequent words of frozen vectors stay in the model besides
            those of the training texts, for texts yet unseen.
        min_count: learned vectors only: rarer words count as unknown, which trains that vector.
        lowercase: whether capital letters make no difference.
    """

    def __init__(
        self, *, keep_words: int = 20_000, min_count: int = 2, lowercase: bool = True
    ) -> None:
        self.keep_words = keep_words
        self.min_count = min_count
        self.lowercase = lowercase


class Selection(Settings):
    """How sharply words are selected, and how much neighbors attract each other.

    Args:
        transition: the score of two neighbors that are both selected.
        learn_transition: whether it is trained.
        test_transition: another transition for predictions, to get longer spans; None for the same.
        temperature: 1 / beta while training; it divides the transition too.
        test_temperature: 1 / beta for predictions.
    """

    def __init__(
        self,
        *,
        transition: float = 0.001,
        learn_transition: bool = False,
        test_transition: float | None = None,
        temperature: float = 0.1,
        test_temperature: float = 1e-3,
    ) -> None:
        self.transition = transition
        self.learn_transition = learn_transition
        self.test_transition = test_transition
        self.temperature = temperature
        self.test_temperature = test_temperature


class Grouped(_Checked):
    """An estimator some of whose parameters are `Settings`, None for their defaults.

    A parameter that has moved into a group since an earlier version is an error that says where it
    is now.
    """

    _groups: ClassVar[Mapping[str, type[Settings]]] = {}
    _moved: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _says_where(cls.__init__)  # type: ignore[method-assign]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters; with ``deep`` also those of the groups, as ``training__lr``."""
        found: dict[str, Any] = super().get_params(deep)
        if deep:
            for group, settings in self._groups.items():
                if found[group] is None:
                    default = settings().get_params()
                    found |= {f"{group}__{name}": value for name, value in default.items()}
        return found

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, those of a group as ``training__lr=0.01``.

        ValueError, and nothing is set, if there is no such parameter.
        """
        self._refuse_moved(parameters)
        for group, settings in self._groups.items():
            nested = any(name.startswith(f"{group}__") for name in parameters)
            if nested and parameters.get(group, getattr(self, group)) is None:
                parameters[group] = settings()
        return super().set_params(**parameters)

    def _group(self, name: str) -> Any:
        """The settings of a group, the default ones where none were given."""
        value, settings = getattr(self, name), self._groups[name]
        if value is None:
            return settings()
        if not isinstance(value, settings):
            raise TypeError(
                f"expected {name} to be hopfy.estimators.{settings.__name__} or None, got "
                f"{type(value).__name__}."
            )
        return value

    @classmethod
    def _refuse_moved(cls, parameters: Mapping[str, Any]) -> None:
        for name, group in cls._moved.items():
            if name in parameters:
                settings = cls._groups[group].__name__
                raise TypeError(
                    f"expected {name} as a part of {group}, got {name}={parameters[name]!r}; write "
                    f"{group}={settings}({name}=...), or set_params({group}__{name}=...)."
                )


def _says_where(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: Any, *arguments: Any, **parameters: Any) -> None:
        self._refuse_moved(parameters)
        init(self, *arguments, **parameters)

    return checked
