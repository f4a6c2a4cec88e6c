# mypy: ignore-errors
"""numba's compiler, arranged so that a kernel and the functions it calls are compiled sooner.

* numba optimizes every function on its own and turns it into machine code, then does so again with
  each caller, level by level. A function that Python never calls is only translated here; the
  kernel links each of them once and is optimized with everything in it.
* numba asks many times what a built-in function or operator gives for the same types. The answers
  are kept.
* Whenever numba looks for the implementation of an operation it compares all compiler options one
  by one. Here equal options are one object.
* Compiling leaves few cycles and visits many objects: the garbage collector waits.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba import _dynfunc, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

__all__ = ["KernelCompiler", "PartCompiler", "call_as_part", "widen_literals"]


# --- machine code ---------------------------------------------------------------------------------


class _KernelLibrary(JITCodeLibrary):
    """Code that Python calls, with all parts that it or its parts call."""

    def finalize(self):
        self._linking_libraries = _in_linking_order(self._linking_libraries)
        super().finalize()

    def _verify_declare_only_symbols(self):
        super()._verify_declare_only_symbols()
        for function in self._final_module.functions:
            if function.is_declaration and function.name.startswith(("_ZN5hopfy", "NRT_incref")):
                raise AssertionError(f"expected code for {function.name}, but nothing defines it.")


def _in_linking_order(libraries):
    """All that these parts call, each after everything that calls it, and other libraries last.

    LLVM drops a definition to which nothing refers at the time it is linked.
    """
    done, parts, others = set(), [], {}

    def visit(library):
        if not isinstance(library, _PartLibrary):
            others[library] = None
        elif library not in done:
            done.add(library)
            for called in library._linking_libraries:
                visit(called)
            parts.append(library)

    for library in libraries:
        visit(library)
    return [*reversed(parts), *others]


class _PartLibrary(JITCodeLibrary):
    """Code that others link in: it is simplified function by function, and has no address."""

    def finalize(self):
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"  # several kernels may have a copy
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self):
        self._ensure_finalized()
        return self._final_module


@register_pass(mutates_CFG=True, analysis_only=False)
class _Translation(NativeLowering):
    """The last step of a part: from typed code to LLVM's language, and no further."""

    _name = "hopfy_translation"

    def run_pass(self, state):
        codegen = state.targetctx.codegen()
        state.library = _PartLibrary(codegen, state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        found, library = state["cr"], state.library
        library.finalize()
        name = found.fndesc.qualname.split(".")[-1]
        module = found.fndesc.lookup_module()
        handle = _dynfunc.make_function(module, name, "", 0, found.env, (library,))
        state.targetctx.insert_user_function(handle, found.fndesc, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = _LowerResult(found.fndesc, found.call_helper, cfunc=handle, env=found.env)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """The last step of a kernel: to machine code, everything that it calls included."""

    _name = "hopfy_lowering"

    def run_pass(self, state):
        codegen = state.targetctx.codegen()
        state.library = _KernelLibrary(codegen, state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


# --- options --------------------------------------------------------------------------------------


class _SharedFlags(Flags):
    """Options that do not change: equal ones are one object, and comparing them costs nothing."""

    __slots__ = ["_all"]

    def __init__(self, flags):
        super().__init__(flags)
        self._all = super().values()

    def values(self):
        return self._all

    def __hash__(self):
        return _HASH

    def __eq__(self, other):
        return self is other or super().__eq__(other)

    def copy(self):
        return Flags(self)


_HASH = hash(Flags())  # of the names of the options: the same for all values
_shared: dict[str, _SharedFlags] = {}


class _OwnFlags(Flags):
    """The options of one compilation; a copy, for comparisons, is shared with others."""

    def copy(self):
        return _shared.setdefault(repr(sorted(self._values.items())), _SharedFlags(self))


# --- compilers ------------------------------------------------------------------------------------


class _Compiler(CompilerBase):
    """numba's compiler with another last step."""

    last_step: type[NativeLowering]

    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):
        own = _OwnFlags(flags)
        super().__init__(typingctx, targetctx, library, args, return_type, own, locals)

    def define_pipelines(self):
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (self.last_step if step is NativeLowering else step, description)
            for step, description in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


class PartCompiler(_Compiler):
    """For functions that only compiled code calls."""

    last_step = _Translation


_OPERATORS = frozenset(getattr(operator, name) for name in operator.__all__)


class KernelCompiler(_Compiler):
    """For functions that Python calls."""

    last_step = _Lowering

    def compile_extra(self, func):
        with _no_garbage_collection(), _remembered_functions(self.state.typingctx):
            return super().compile_extra(func)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _remembered_functions(typing) -> Iterator[None]:
    """Find once what a built-in function gives for some types: numba asks again and again."""
    if "resolve_function_type" in vars(typing):  # a kernel that another kernel calls
        yield
        return
    resolve, known = typing.resolve_function_type, {}

    def resolve_once(function, args, kws):
        built_in = isinstance(function, types.Function) or function in _OPERATORS
        if kws or not built_in:
            return resolve(function, args, kws)
        found = known.get((function, args))
        if found is None:
            found = known[function, args] = resolve(function, args, kws)
        return found

    typing.resolve_function_type = resolve_once
    try:
        yield
    finally:
        del typing.resolve_function_type


def widen_literals(dispatcher: Any) -> Any:
    """Compile for integers, not once more for each literal such as 0 that is passed."""
    resolve = dispatcher.get_call_template

    def resolve_widened(args, kws):
        args = tuple(types.unliteral(arg) for arg in args)
        return resolve(args, {name: types.unliteral(arg) for name, arg in kws.items()})

    dispatcher.get_call_template = resolve_widened
    return dispatcher


def call_as_part(kernel: Any, make_part: Callable[[], Any]) -> None:
    """Let compiled code that calls a kernel use a part of the same function, made when needed."""
    made = cache(make_part)
    kernel.get_call_template = lambda args, kws: made().get_call_template(args, kws)
    kernel.get_overload = lambda signature: made().get_overload(signature)
