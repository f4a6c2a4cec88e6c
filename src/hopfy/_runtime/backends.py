"""Which code computes an operation: plain torch, loops compiled for the CPU, or Triton.

An operation is a folder ``hopfy/_kernels/NAME`` whose ``__init__`` asks `kernels_for` once per call.
The modules beside it offer the same functions with the same arguments, for example
``solve(scores, parameter)`` and ``vjp(weights, parameter, cotangent)``:

* ``reference.py``: plain torch, any device, differentiable, no host synchronization;
* ``cpu.py``: loops compiled by numba, float32 and float64 on the CPU;
* ``gpu.py``: Triton kernels, where an operation has them.
"""

from __future__ import annotations

import importlib
import os
import warnings
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar, Token
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hopfy._runtime.dispatch import has_plain_memory

__all__ = [
    "KERNEL_DTYPES",
    "backend_for",
    "chosen_backend",
    "compiled",
    "kernels_for",
    "launching_on",
    "numba_is_available",
    "runs_compiled",
    "triton_is_available",
    "use_backend",
]

_BACKENDS = ("auto", "reference", "cpu", "triton")
_DTYPES = (torch.float32, torch.float64)
_TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # float32 inside
_TRITON_VERSION = (3, 9)  # older ones do not take None inside the tuples that our kernels pass
_ACCELERATORS = ("cuda", "xpu")  # an AMD device calls itself cuda, too

# What kernels serve, by the type of the device.
KERNEL_DTYPES = {"cpu": _DTYPES, **dict.fromkeys(_ACCELERATORS, _TRITON_DTYPES)}

_chosen: ContextVar[str] = ContextVar("hopfy_backend", default="auto")


class use_backend(ContextDecorator):  # noqa: N801
    """Choose the code that computes, inside a ``with`` block or a decorated function.

    Args:
        name: ``"auto"`` takes the fastest that can serve a tensor: Triton on GPUs, compiled loops on
            the CPU, plain torch for everything else. ``"reference"`` computes with plain torch.
            ``"cpu"`` and ``"triton"`` choose the compiled loops or Triton wherever they can serve
            the operation and the tensor, and plain torch elsewhere; with ``TRITON_INTERPRET=1`` in
            the environment Triton serves tensors on the CPU, too.

    The choice holds for the current thread (or asyncio task), can be nested, and is remembered by
    results that require gradients: their backward pass uses the same backend.

    Raises:
        ValueError: if the name is unknown.
        RuntimeError: if the package behind the backend is missing.

    >>> import hopfy, torch
    >>> with hopfy.use_backend("reference"):
    ...     hopfy.functional.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, name: str) -> None:
        if name not in _BACKENDS:
            expected = ", ".join(repr(backend) for backend in _BACKENDS)
            raise ValueError(f"expected a backend among {expected}, got {name!r}.")
        self.name = name
        self._tokens: list[Token[str]] = []

    def _recreate_cm(self) -> use_backend:
        """A decorated function gets a context of its own for every call."""
        return use_backend(self.name)

    def __enter__(self) -> use_backend:
        if self.name == "cpu" and not numba_is_available():
            raise RuntimeError(
                "the backend 'cpu' needs numba, which cannot be imported or has been switched off "
                "by NUMBA_DISABLE_JIT=1; install it with `pip install numba` or unset the variable, "
                "or choose 'auto' or 'reference'."
            )
        if self.name == "triton" and not triton_is_available():
            raise RuntimeError(
                "the backend 'triton' needs triton 3.9 or newer, which cannot be imported; install "
                "it with `pip install 'triton>=3.9'`, or choose 'auto' or 'reference'."
            )
        self._tokens.append(_chosen.set(self.name))
        return self

    def __exit__(self, *_: Any) -> None:
        _chosen.reset(self._tokens.pop())


def chosen_backend() -> str:
    """The name given to the innermost `use_backend`; ``"auto"`` outside of any."""
    return _chosen.get()


def backend_for(tensor: Tensor) -> str:
    """``"reference"``, ``"cpu"`` or ``"triton"``: what serves this tensor now."""
    chosen = _chosen.get()
    if chosen == "reference" or not has_plain_memory(tensor):
        return "reference"
    device = tensor.device.type
    if device == "cpu" and chosen != "triton":
        return "cpu" if tensor.dtype in _DTYPES and numba_is_available() else "reference"
    if chosen == "cpu" or tensor.dtype not in _TRITON_DTYPES:
        return "reference"
    if device == "cpu":
        return "triton" if os.environ.get("TRITON_INTERPRET") == "1" else "reference"
    return "triton" if device in _ACCELERATORS and triton_is_available() else "reference"


def kernels_for(operation: str, tensor: Tensor, recorded: bool = False) -> ModuleType:
    """The module of ``hopfy._kernels.OPERATION`` that serves this tensor now.

    Only the reference can be ``recorded`` by autograd, operation by operation.
    """
    return _kernels(operation, "reference" if recorded else backend_for(tensor))


def launching_on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device of a process: inside, that is the tensor's."""
    devices: Any = torch.xpu if tensor.device.type == "xpu" else torch.cuda
    found: AbstractContextManager[Any] = devices.device_of(tensor)
    return found


@cache
def _kernels(operation: str, backend: str) -> ModuleType:
    folder = f"hopfy._kernels.{operation}"
    module = f"{folder}.{'gpu' if backend == 'triton' else backend}"
    if find_spec(module) is None:  # this operation has no kernel of this kind
        module = f"{folder}.reference"
    return importlib.import_module(module)


@cache
def numba_is_available() -> bool:
    """Whether numba compiles; one warning if it cannot be imported.

    With NUMBA_DISABLE_JIT=1 it does not: the reference answers, and the loops that have none run as
    plain Python.
    """
    try:
        import numba
    except ImportError:
        warnings.warn(
            "numba cannot be imported, so hopfy computes with plain torch, many times slower; "
            "install it with `pip install numba`.",
            RuntimeWarning,
            stacklevel=5,
        )
        return False
    return not numba.config.DISABLE_JIT


@cache
def triton_is_available() -> bool:
    """Whether a version of triton that compiles our kernels can be imported."""
    try:
        import triton
    except ImportError:
        return False
    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= _TRITON_VERSION


# --- loops that only the CPU has ------------------------------------------------------------------


def compiled(name: str) -> ModuleType | None:
    """The module ``hopfy._kernels.NAME`` of compiled loops; None without numba or if not wanted."""
    if _chosen.get() == "reference" or not numba_is_available():
        return None
    return _imported(name)


@cache
def _imported(name: str) -> ModuleType:
    return importlib.import_module(f"hopfy._kernels.{name}")


def runs_compiled(tensor: Tensor) -> bool:
    """Whether the loops compiled for the CPU serve this tensor."""
    return backend_for(tensor) == "cpu"
