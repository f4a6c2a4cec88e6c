"""Estimators in files: tensors and JSON, never code.

A file holds the network's parameters, the settings to build the network again, and nothing that is
executed. What a user brought as a module of their own is not in the file and is given again when it
is loaded. A file is believed only as far as it fits the network that it describes: this network is
first built without memory, so that no claim in a file can ask for any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hopfy._files.tensors import FileFormat, StoredFile, Streamed, write
from hopfy.estimators._settings import Settings
from hopfy.estimators._training import ExponentialDecay, ReduceOnPlateau
from hopfy.omega import Omega

__all__ = [
    "OWN_MODULE",
    "build",
    "classes_from",
    "classes_table",
    "omega_from_table",
    "omega_table",
    "open_file",
    "parameter_table",
    "plain",
    "save",
    "settings_from",
    "settings_table",
]

# Stands in the settings for what `load` has to be given.
OWN_MODULE = {"own": "module"}
_NETWORK = "network."
_SCHEDULES: dict[str, Any] = {each.__name__: each for each in (ExponentialDecay, ReduceOnPlateau)}
_CLASS_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "str", "object"}
)


def save(
    path: str | os.PathLike[str],
    kind: FileFormat,
    network: nn.Module,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a network and its settings (JSON) to ``path``, atomically.

    ``tensors`` are stored beside it; long tables (a vocabulary as bytes) belong there, as the
    settings may have no more than a megabyte.
    """
    state = {_NETWORK + name: tensor for name, tensor in network.state_dict().items()}
    found = {**state, **(tensors or {})}
    write(path, kind, {name: Streamed.of(each) for name, each in found.items()}, settings)


def open_file(
    path: str | os.PathLike[str], kind: FileFormat
) -> tuple[StoredFile, dict[str, Tensor]]:
    """A file whose checksums are right, and a copy of its tensors other than the network's."""
    file = StoredFile(path, kind)
    for name in file.entries:
        file.verify(name)
    others = [name for name in file.entries if not name.startswith(_NETWORK)]
    return file, {name: file.tensor(name).clone() for name in others}


def build(file: StoredFile, network: Callable[[], nn.Module]) -> nn.Module:
    """The network that ``network()`` makes, with the parameters of the file.

    It is called where tensors have no storage; modules that a user made before keep theirs.
    """
    try:
        with torch.device("meta"):
            made = network()
        expected = {name: (each.shape, each.dtype) for name, each in made.state_dict().items()}
    except (ArithmeticError, KeyError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise file.error(f"its settings do not describe a network: {error}") from None
    state = {
        name.removeprefix(_NETWORK): file.tensor(name)
        for name in file.entries
        if name.startswith(_NETWORK)
    }
    found = {name: (each.shape, each.dtype) for name, each in state.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise file.error(
                f"its tensor {name!r} is {_shown(found.get(name))} where the network that it "
                f"describes (or the module given to load) has {_shown(expected.get(name))}"
            )
    if not all(bool(each.isfinite().all()) for each in state.values()):
        raise file.error("its parameters are not finite")
    made.load_state_dict({name: each.clone() for name, each in state.items()}, assign=True)
    return made.eval()


def _shown(one: tuple[Any, Any] | None) -> str:
    return "nothing" if one is None else f"{one[1]} of shape {tuple(one[0])}"


def omega_table(omega: Omega | nn.Module) -> dict[str, Any]:
    """A regularizer as JSON.

    >>> import hopfy
    >>> omega_table(hopfy.omega_from("1.5-entmax"))
    {'family': 'entmax', 'alpha': 1.5}
    >>> omega_from_table(omega_table(hopfy.omega_from("3-subsets")))
    SparseMAP(structure=KSubsets(k=3))
    """
    if isinstance(omega, nn.Module):
        return OWN_MODULE
    return omega.spec()


def omega_from_table(table: Any) -> Omega:
    """The regularizer; a ValueError where the table was not written by `save`."""
    return Omega.from_spec(table)


def settings_table(settings: Settings) -> dict[str, Any]:
    """A group of parameters as JSON.

    >>> from hopfy.estimators import ExponentialDecay, Training
    >>> table = settings_table(Training(lr=0.5, schedule=ExponentialDecay(0.9)))
    >>> table["schedule"]
    {'class': 'ExponentialDecay', 'factor': 0.9}
    >>> settings_from(table, Training)
    Training(lr=0.5, schedule=ExponentialDecay(factor=0.9))
    """
    table = {}
    for name, value in settings.get_params(deep=False).items():
        if isinstance(value, ExponentialDecay | ReduceOnPlateau):
            table[name] = {"class": type(value).__name__, **asdict(value)}
        else:
            table[name] = plain(value)
    return table


def parameter_table(name: str, value: Any) -> Any:
    """A parameter that any estimator may have, as JSON."""
    if isinstance(value, Settings):
        return settings_table(value)
    if isinstance(value, dict):
        return {"pairs": [[plain(label), float(weight)] for label, weight in value.items()]}
    if name == "random_state" and not isinstance(value, int | np.integer):
        return None  # a generator has no place in a file; what it drew is in the parameters
    return plain(value)


def plain(value: Any) -> Any:
    """NumPy's numbers, which grids are made of, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def settings_from(table: Any, kind: type[Settings]) -> Settings:
    """The group; KeyError, TypeError or ValueError where the table was not written by `save`.

    Parameters that are newer than the file have their defaults.
    """
    parameters = dict(table)
    if not parameters.keys() <= kind().get_params(deep=False).keys():
        raise KeyError("other parameters")
    for name, value in parameters.items():
        if isinstance(value, dict):
            fields = dict(value)
            parameters[name] = _SCHEDULES[fields.pop("class")](**fields)
    return kind(**parameters)


def classes_table(classes: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Class labels as JSON: numbers, booleans or strings.

    >>> import numpy as np
    >>> classes_from(classes_table(np.array(["no", "yes"])))
    array(['no', 'yes'], dtype='<U3')
    """
    dtype = "str" if classes.dtype.kind == "U" else classes.dtype.name
    labels = classes.tolist()
    if dtype not in _CLASS_DTYPES or not all(isinstance(x, str | int | float) for x in labels):
        raise TypeError(f"expected classes that are numbers or strings, got {classes!r}.")
    return {"dtype": dtype, "labels": labels}


def classes_from(table: Any) -> np.ndarray[Any, Any]:
    """The labels; KeyError, TypeError or ValueError where the table was not written by `save`."""
    labels, dtype = table["labels"], table["dtype"]
    if dtype not in _CLASS_DTYPES or not isinstance(labels, list):
        raise ValueError("expected class labels of a known dtype.")
    if not all(isinstance(label, str | int | float) for label in labels):
        raise TypeError("expected class labels that are numbers or strings.")
    try:
        classes = np.asarray(labels, dtype=dtype)
    except OverflowError as error:
        raise ValueError(f"expected class labels that fit {dtype}: {error}.") from None
    if not labels or len(np.unique(classes)) != len(labels) or classes.tolist() != labels:
        raise ValueError(f"expected different class labels that fit {dtype}.")
    return classes
