"""Parameters and words of the estimators with rationales, as JSON in their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopfy._files.tensors import StoredFile
from hopfy.estimators import _files
from hopfy.estimators._settings import Settings
from hopfy.estimators._text import Vocabulary
from hopfy.estimators._vectors import WordVectors

__all__ = [
    "NOT_SAVED",
    "OWN_VECTORS",
    "OwnMethodError",
    "parameter_table",
    "parameters_from",
    "words_from",
    "words_tensor",
]

# They belong to a machine or a session.
NOT_SAVED = frozenset({"device", "verbose"})
# Stands for vectors that a user gave: they come back out of the network.
OWN_VECTORS = {"own": "vectors"}


class OwnMethodError(ValueError):
    """An argument of load that is missing or has no use."""


def parameter_table(name: str, value: Any) -> Any:
    """A parameter as JSON."""
    if name == "method" and not isinstance(value, str):
        return _files.OWN_MODULE
    if name == "vectors" and isinstance(value, WordVectors | tuple | list):
        return OWN_VECTORS
    if name == "vectors" and isinstance(value, Path):
        return str(value)
    if name == "bounds" and value is not None:
        return [float(bound) for bound in value]
    return _files.parameter_table(name, value)


def parameters_from(
    file: StoredFile,
    names: Collection[str],
    groups: Mapping[str, type[Settings]],
    method: Callable[..., Any] | None,
) -> dict[str, Any]:
    """The constructor's arguments; KeyError and the like where the table was not written by `save`."""
    parameters = dict(file.settings["parameters"])
    if parameters.keys() != set(names) - NOT_SAVED:
        raise KeyError("other parameters")
    own = parameters["method"] == _files.OWN_MODULE
    if own and method is None:
        raise OwnMethodError(
            f"expected the method that {str(file.path)!r} was saved with, got none; "
            "call load(path, method=...)."
        )
    if not own and method is not None:
        raise OwnMethodError(
            f"expected no method, as {str(file.path)!r} names its own "
            f"({parameters['method']!r}); leave it out."
        )
    if own:
        parameters["method"] = method
    for name, settings in groups.items():
        if parameters[name] is not None:
            parameters[name] = _files.settings_from(parameters[name], settings)
    weights = parameters.get("class_weight")
    if isinstance(weights, dict):
        parameters["class_weight"] = {label: float(weight) for label, weight in weights["pairs"]}
    return parameters


def words_tensor(vocabulary: Vocabulary) -> Tensor:
    """The words as bytes: a long list belongs among the tensors of a file."""
    words = json.dumps(list(vocabulary.words)).encode()
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def words_from(stored: Tensor, lowercase: bool) -> Vocabulary:
    """The vocabulary from its bytes; ValueError where they are not one."""
    if stored.dtype != torch.uint8 or stored.ndim != 1:
        raise ValueError("expected the vocabulary as bytes.")
    words = json.loads(stored.numpy().tobytes())
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("expected a list of words.")
    return Vocabulary(words, lowercase=lowercase)
