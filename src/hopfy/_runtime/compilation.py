"""Compiling kernels: lazily, cached on disk when possible.

A compiled kernel is a serial loop ``kernel(start, stop, ...)`` over rows that releases the
interpreter lock; threads come from `hopfy._runtime.threads`, because numba's own pools survive
neither fork nor many callers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopfy._runtime.backends import compiled, runs_compiled

__all__ = ["compiled", "jit", "part", "runs_compiled"]


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
