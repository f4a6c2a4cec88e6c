"""Old names of arguments, attributes and module members: an error that says the new name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["renamed_arguments", "renamed_attributes", "renamed_members"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def renamed_arguments(**names: str) -> Callable[[_Function], _Function]:
    """A function that names the new argument where it is given an old one, ``old="new"``.

    >>> @renamed_arguments(tolerance="tol")
    ... def solve(*, tol=0.1):
    ...     return tol
    >>> solve(tolerance=0.2)
    Traceback (most recent call last):
        ...
    TypeError: expected tol=..., got tolerance=...; it is called tol now.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            for old, new in names.items():
                if old in options:
                    raise TypeError(f"expected {new}=..., got {old}=...; it is called {new} now.")
            return function(*arguments, **options)

        return checked  # type: ignore[return-value]

    return decorate


def renamed_attributes(**names: str) -> Callable[[Any, str], Any]:
    """The ``__getattr__`` of a class whose attributes were renamed, ``old="new"``."""

    def missing(self: object, name: str) -> Any:
        own = type(self).__name__
        if name in names:
            raise AttributeError(f"{own}.{name} is called {own}.{names[name]} now.")
        raise AttributeError(f"{own!r} object has no attribute {name!r}")

    return missing


def renamed_members(module: str, **names: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose members were renamed, ``Old="New"``."""

    def missing(name: str) -> Any:
        if name in names:
            raise AttributeError(f"{module}.{name} is called {module}.{names[name]} now.")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing
