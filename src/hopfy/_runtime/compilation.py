"""Loading compiled kernels: lazily, cached on disk when possible, and optional.

A compiled kernel lives in ``hopfy._kernels.NAME_compiled``, the only modules that import numba. It is
a serial loop ``kernel(start, stop, ...)`` over rows that releases the interpreter lock; threads come
from `hopfy._runtime.threads`, because numba's own pools survive neither fork nor many callers.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

__all__ = ["compiled", "jit", "part", "runs_compiled"]


@cache
def compiled(name: str) -> ModuleType | None:
    """The module ``hopfy._kernels.NAME``, or None (with one warning for all) if numba is missing."""
    if not _numba_is_here():
        return None
    return importlib.import_module(f"hopfy._kernels.{name}")


@cache
def _numba_is_here() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        warnings.warn(
            "numba cannot be imported, so hopfy computes with plain torch, many times slower; "
            "install it with `pip install numba`.",
            RuntimeWarning,
            stacklevel=5,
        )
        return False
    return True


def runs_compiled(tensor: Tensor) -> bool:
    """Whether the compiled loops can read this tensor's memory (no tracer's or vmap's stand-in)."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._are_functorch_transforms_active()
    )


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` without the interpreter lock, cached on disk unless no folder is writable.

    Sums may be reassociated (that is what lets them use vector instructions); NaN, infinities and
    signed zeros keep their meaning.
    """
    if function is None:
        return lambda f: jit(f, **options)
    import numba

    options = {"nogil": True, "fastmath": {"reassoc", "contract"}, "error_model": "numpy"} | options
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no place for its cache
        return numba.njit(**options)(function)


def part(function: Callable[..., Any]) -> Any:
    """`jit` for a function that only compiled code calls.

    The entry points from Python are not built: they take as long to compile as the function.
    """
    return jit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
