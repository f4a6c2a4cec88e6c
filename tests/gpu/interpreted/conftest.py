"""Triton's interpreter in half the time.

A launch replaces the functions of ``triton.language`` by interpreted ones, and so does every call of a
device function inside, where all is replaced already. Here each module is replaced once for a launch.
"""

from __future__ import annotations

import inspect
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_replace = interpreter._patch_lang
_replaced: set[str] = set()


class _Scope:
    """Ends with the launch that began it."""

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def restore(self) -> None:
        _replaced.clear()
        self.scope.restore()


def _replace_once(function: Any) -> Any:
    modules = [x for x in function.__globals__.values() if inspect.ismodule(x)]
    names = {x.__name__ for x in modules if x in (tl, tl.core)}
    if names and names <= _replaced:
        return None  # a device function: its scope is not used
    _replaced.update(names)
    return _Scope(_replace(function))


interpreter._patch_lang = _replace_once
