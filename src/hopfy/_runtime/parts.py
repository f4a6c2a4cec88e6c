# mypy: ignore-errors
"""Compile functions that only compiled code calls once, together with the kernel that calls them.

numba optimizes every function on its own and turns it into machine code, then does so again with
each caller, level by level. For a function that Python never calls, all but the last time is
wasted: here such a function is only translated, and the kernel that Python calls is optimized with
everything in it.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

__all__ = ["PartCompiler", "widen_literals"]


class _PartLibrary(JITCodeLibrary):
    """Code that others link in: it stays as it was translated, and has no address."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Translation(NativeLowering):
    """The last step: from typed code to LLVM's language, and no further."""

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


class PartCompiler(CompilerBase):
    """numba's compiler with a last step that only translates."""

    def define_pipelines(self):
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (_Translation if step is NativeLowering else step, description)
            for step, description in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


def widen_literals(dispatcher: Any) -> Any:
    """Compile for integers, not once more for each literal such as 0 that is passed."""
    resolve = dispatcher.get_call_template

    def resolve_widened(args, kws):
        args = tuple(types.unliteral(arg) for arg in args)
        return resolve(args, {name: types.unliteral(arg) for name, arg in kws.items()})

    dispatcher.get_call_template = resolve_widened
    return dispatcher
