"""The public API, name by name: a change of it must be deliberate.

After a deliberate change run ``python tests/docs/test_public_api.py`` and commit the new list.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

MODULES = [
    "hopfy",
    "hopfy.app",
    "hopfy.distributed",
    "hopfy.estimators",
    "hopfy.functional",
    "hopfy.integrations.transformers",
    "hopfy.losses",
    "hopfy.memory",
    "hopfy.models",
    "hopfy.network",
    "hopfy.nn",
    "hopfy.omega",
    "hopfy.paper",
    "hopfy.paper.data",
    "hopfy.plot",
    "hopfy.search",
    "hopfy.states",
    "hopfy.structures",
    "hopfy.theory",
]
SNAPSHOT = Path(__file__).parent / "public_api.txt"


def _signature(thing: object) -> str:
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()
    ]
    shown = inspect.Signature([_readable(p) for p in parameters])
    return str(shown)


def _readable(parameter: inspect.Parameter) -> inspect.Parameter:
    """Defaults as values, not as addresses."""
    default = parameter.default
    if default is inspect.Parameter.empty or isinstance(default, str | int | float | tuple | None):
        return parameter
    name = getattr(default, "__name__", type(default).__name__)
    return parameter.replace(default=_Shown(f"<{name}>"))


class _Shown(str):
    def __repr__(self) -> str:
        return str(self)


def _members(kind: type) -> Iterator[str]:
    """Public methods and properties that hopfy's own classes define or inherit from each other."""
    for name in sorted(set(dir(kind))):
        if name.startswith("_"):
            continue
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or not owner.__module__.startswith("hopfy"):
            continue
        member = inspect.getattr_static(kind, name)
        declared = [vars(base).get(name) for base in kind.__mro__]
        if any(isinstance(each, property) for each in declared):  # a class may answer by a constant
            yield f"  .{name}"
        elif callable(getattr(kind, name, None)) and not isinstance(member, type):
            yield f"  .{name}{_signature(getattr(kind, name))}"


def _lines(module: ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        full = f"{module.__name__}.{name}"
        if isinstance(thing, ModuleType):
            yield f"{full} (module)"
        elif inspect.isclass(thing):
            yield f"{full}{_signature(thing)}"
            if thing.__module__.startswith("hopfy"):
                yield from _members(thing)
        elif callable(thing):
            yield f"{full}{_signature(thing)}"
        else:
            yield full


def _described() -> str:
    lines = [line for name in MODULES for line in _lines(importlib.import_module(name))]
    return "\n".join(lines) + "\n"


def test_the_public_api_is_the_one_on_record() -> None:
    recorded = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    now = _described().splitlines()
    gone = [line for line in recorded if line not in set(now)]
    new = [line for line in now if line not in set(recorded)]
    assert (gone, new) == ([], []), "run python tests/docs/test_public_api.py if this is deliberate"


@pytest.mark.parametrize("name", MODULES)
def test_constructors_name_their_arguments(name: str) -> None:
    """Tab completion offers real arguments."""
    module = importlib.import_module(name)
    vague = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for public in module.__all__:
        thing = getattr(module, public)
        if not inspect.isclass(thing) or not thing.__module__.startswith("hopfy"):
            continue
        if issubclass(thing, BaseException) or getattr(thing, "_is_protocol", False):
            continue
        try:
            parameters = inspect.signature(thing).parameters.values()
        except ValueError:
            continue
        owner = next(base for base in thing.__mro__ if "__init__" in vars(base) or base is object)
        if owner.__module__.startswith("hopfy"):
            assert not any(p.kind in vague for p in parameters), f"{name}.{public}"


if __name__ == "__main__":
    SNAPSHOT.write_text(_described(), encoding="utf-8")
