"""Pages of the API reference: one for each public module, every name of its ``__all__`` on it.

A name that two modules export is described where it is defined; the other page links to it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# Public modules, in the order of the reference.
MODULES = {
    "hopfy": "The names that most programs need.",
    "hopfy.functional": "Maps: tensors in, tensors out.",
    "hopfy.omega": "Regularizers of the weights.",
    "hopfy.structures": "Sets of structures and their oracles.",
    "hopfy.losses": "Fenchel-Young losses.",
    "hopfy.network": "Energies, dynamics, retrieval.",
    "hopfy.states": "Regularizers of the state.",
    "hopfy.models": "The networks of the literature.",
    "hopfy.memory": "A memory with ids, values and files.",
    "hopfy.nn": "Layers.",
    "hopfy.theory": "The propositions, as functions.",
    "hopfy.search": "Exact search.",
    "hopfy.distributed": "Many processes.",
    "hopfy.estimators": "Models with scikit-learn's verbs.",
    "hopfy.integrations.transformers": "Hugging Face models.",
    "hopfy.app": "The explorer.",
    "hopfy.plot": "Pictures.",
    "hopfy.paper": "Experiments of the paper.",
    "hopfy.paper.data": "Data sets.",
}


def write_reference(folder: Path) -> None:
    """Write ``index.md`` and one page for each module."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "\n".join(f"| [`{name}`]({name}.rst) | {what} |" for name, what in MODULES.items())
    pages = "\n".join(MODULES)
    (folder / "index.md").write_text(
        f"# API reference\n\n| module | |\n|---|---|\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{pages}\n```\n",
        encoding="utf-8",
    )
    for name in MODULES:
        (folder / f"{name}.rst").write_text("\n".join(_page(name)) + "\n", encoding="utf-8")


def _page(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield from (name, "=" * len(name), "", f".. automodule:: {name}", "   :no-members:", "")
    for public in sorted(module.__all__, key=str.lower):
        thing = getattr(module, public)
        home = _home(name, public, thing)
        if isinstance(thing, ModuleType):
            yield from (f"The module :py:mod:`{thing.__name__}`.", "")
        elif home != name:
            yield from _alias(name, public, home, thing)
        else:
            yield from _entry(name, public, thing)


def _home(module: str, public: str, thing: object) -> str:
    """The public module that describes a name: the most specific one that holds its definition."""
    defined = getattr(thing, "__module__", None) or module
    candidates = [
        other
        for other in MODULES
        if getattr(importlib.import_module(other), public, None) is thing
        and public in importlib.import_module(other).__all__
    ]
    inside = [other for other in candidates if defined.startswith(other)]
    return max(inside or [module], key=len)


def _alias(name: str, public: str, home: str, thing: object) -> Iterator[str]:
    kind = "class" if inspect.isclass(thing) else "function"
    yield from (f".. py:{kind}:: {public}", "")
    yield from (f"   The same as :py:obj:`{home}.{public}`.", "")


def _entry(name: str, public: str, thing: object) -> Iterator[str]:
    if inspect.isclass(thing):
        yield f".. autoclass:: {name}.{public}"
        if thing.__module__.startswith("hopfy"):
            yield from ("   :members:", "   :show-inheritance:")
            if not issubclass(thing, tuple | BaseException):
                yield "   :undoc-members:"
    elif callable(thing):
        yield f".. autofunction:: {name}.{public}"
    else:
        yield f".. autodata:: {name}.{public}"
    yield ""
