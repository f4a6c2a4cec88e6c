"""The decorator of a compiled kernel's parts."""

from __future__ import annotations

from hopfy._kernels._compile import jit

__all__ = ["part"]

# Only compiled code calls a part, so the doors from Python need not be built: that takes as long to
# compile as the part itself.
part = jit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
