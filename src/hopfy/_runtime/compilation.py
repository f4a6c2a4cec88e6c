"""Compiling kernels: lazily, and cached on disk where possible.

A compiled kernel is a serial loop ``kernel(start, stop, ...)`` over rows that releases the
interpreter lock; threads come from `hopfy._runtime.threads`, because numba's own pools survive
neither fork nor many callers.

Compiling takes time that a user waits for, most of it per function and per loop:

* a kernel that Python calls is decorated with `jit` and does one thing (one regime of a map);
* its helpers are `inlined` if they are small, or a `part`, compiled once, if several kernels or
  several places call them or if they need their own rules of arithmetic; a `leaf` is a part that
  needs no counting of references, which makes it a fifth shorter;
* an argument that is None removes the branches that would use it (a regime without penalties);
* allocations are compiled for each dtype and for each way to write them: use few;
* slices, ``x[:] = value`` and exceptions with text cost tenths of a second each: write loops, and
  return codes that the caller in Python turns into an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from hopfy._runtime.backends import compiled, numba_is_available, runs_compiled
from hopfy._runtime.kernel_cache import KernelCache

__all__ = ["compiled", "inlined", "jit", "leaf", "part", "runs_compiled"]

# Sums may be reassociated (that is what lets them use vector instructions); NaN, infinities and
# signed zeros keep their meaning.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": {"reassoc", "contract"},
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a kernel that Python calls; the machine code is kept in a `KernelCache`.

    Compiled code that calls the kernel takes it as a `part`: nothing is compiled for Python then.
    Without numba the function stays as it is: slow Python.
    """
    if function is None:
        return lambda f: jit(f, **options)
    if not numba_is_available():
        return function
    dispatcher = _dispatcher(function, "KernelCompiler", _OPTIONS | options)
    dispatcher._cache = KernelCache(function)
    if compilers := _compilers():
        compilers.call_as_part(dispatcher, lambda: part(function, **options))
    return dispatcher


def part(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that only compiled code calls: it has no entry point from Python."""
    if function is None:
        return lambda f: part(f, **options)
    if not numba_is_available():
        return function
    own = _OPTIONS | {"no_cpython_wrapper": True} | options
    dispatcher = _dispatcher(function, "PartCompiler", own)
    return compilers.widen_literals(dispatcher) if (compilers := _compilers()) else dispatcher


def leaf(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A `part` that neither allocates nor returns an array: no references are counted in it."""
    if function is None:
        return lambda f: leaf(f, **options)
    return part(function, _nrt=False, **options)


def inlined(function: Callable[..., Any]) -> Any:
    """Copy a function into each of its callers, whose rules of arithmetic it then follows."""
    return part(function, inline="always")


def _dispatcher(function: Callable[..., Any], compiler: str, options: dict[str, Any]) -> Any:
    import numba

    compilers = _compilers()
    own = {"pipeline_class": getattr(compilers, compiler)} if compilers else {}
    return numba.njit(**options, **own)(function)


@cache
def _compilers() -> ModuleType | None:
    """The compilers of `hopfy._runtime.numba_compilers`; None where numba's internals have other names."""
    try:
        from hopfy._runtime import numba_compilers
    except (AttributeError, ImportError):
        return None
    return numba_compilers
