"""From a solver of rows to a differentiable function: autograd, vmap, forward mode, torch.compile.

Its first input has rows (..., N). The leading dimensions of further inputs broadcast to those of the
first, and every output has the leading dimensions of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._runtime.backends import chosen_backend, use_backend
from hopfy._runtime.dispatch import (
    forward_mode_is_active,
    has_values,
    is_batched,
    is_compiling,
    is_in_onnx_export,
    is_tracing,
    records_gradients,
    transforms_are_active,
)

__all__ = ["RowMap", "differentiable"]

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]
Needed = Sequence[bool]  # one for each input: whether its gradient may be asked for


class RowMap(NamedTuple):
    """A function of rows and its derivatives, which are differentiable functions themselves.

    A memo is what a solution knows beyond its outputs. An eager call keeps it for its derivatives. In
    operators and transforms, which hold tensors only, it is None, and the derivatives solve again.

    Attributes:
        name: of the operator ``hopfy::name``.
        schema: the operator's inputs, rows first, and outputs.
        solve: ``(inputs, memo, needed) -> (outputs, memo)``.
        keep: ``(inputs, outputs, memo) ->`` the tensors that the derivatives need.
        vjp: ``(kept, cotangents, needed, memo) ->`` a gradient for each input, or None. It may have
            dimensions along which the input was broadcast.
        jvp: ``(kept, tangents) ->`` the changes of the outputs.
        blank: ``(*inputs) ->`` tensors with the shapes and dtypes of the outputs.
    """

    name: str
    schema: str
    solve: Callable[[Tensors, Any, Needed], tuple[Tensors, Any]]
    keep: Callable[[Tensors, Tensors, Any], Tensors]
    vjp: Callable[[Tensors, Tensors, Needed, Any], Gradients]
    jvp: Callable[[Tensors, Gradients], Tensors]
    blank: Callable[..., Tensors]

    def plainly(self, *inputs: Tensor) -> Any:
        """The outputs, where neither a memo nor a gradient is wanted."""
        plain = tuple(part.detach() for part in inputs)
        return _unpacked(self.solve(plain, None, (False,) * len(inputs))[0])


def differentiable(row_map: RowMap) -> Callable[..., Any]:
    """Return ``(*inputs, memo=None) -> outputs``, differentiable any number of times.

    Three entry points share the row map: an `autograd.Function` for ordinary eager use, one with
    ``setup_context``, a vmap rule and a forward mode for `torch.func`, and the custom operator
    ``hopfy::name`` that `torch.compile` and `torch.export` keep whole in their graphs.
    """
    eager, transformable = _eager_function(row_map), _transformable_function(row_map)
    operator = _operator(row_map)

    def apply(*inputs: Tensor, memo: Any = None) -> Any:
        in_graph = is_compiling() or not has_values(inputs[0])
        if in_graph and not is_in_onnx_export():
            return operator(*inputs)
        if transforms_are_active() or forward_mode_is_active():
            return transformable.apply(*inputs)
        if records_gradients(*inputs) and not is_tracing():
            return eager.apply(memo, *inputs)
        return _unpacked(row_map.solve(inputs, memo, (False,) * len(inputs))[0])

    return apply


def _eager_function(row_map: RowMap) -> Any:
    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, memo: Any, *inputs: Tensor) -> Any:
            plain = tuple(part.detach() for part in inputs)
            outputs, ctx.memo = row_map.solve(plain, memo, ctx.needs_input_grad[1:])
            ctx.save_for_backward(*row_map.keep(inputs, outputs, ctx.memo))
            ctx.layouts = _layouts(inputs)
            ctx.backend = chosen_backend()  # the backward pass may run on another thread
            return _unpacked(outputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            needed = ctx.needs_input_grad[1:]
            many = any(map(is_batched, cotangents))  # compiled loops cannot read these
            with use_backend("reference" if many else ctx.backend):
                found = row_map.vjp(ctx.saved_tensors, cotangents, needed, ctx.memo)
                return None, *_summed(found, ctx.layouts)

    Eager.__name__ = Eager.__qualname__ = row_map.name
    return Eager


def _transformable_function(row_map: RowMap) -> Any:
    class Transformable(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Tensor) -> Any:
            return row_map.plainly(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Tensors, output: Any) -> None:
            kept = row_map.keep(inputs, _packed(output), None)
            ctx.save_for_backward(*kept)
            ctx.save_for_forward(*kept)
            ctx.layouts = _layouts(inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            found = row_map.vjp(ctx.saved_tensors, cotangents, ctx.needs_input_grad, None)
            return _summed(found, ctx.layouts)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            return _unpacked(row_map.jvp(ctx.saved_tensors, tangents))

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
            found = Transformable.apply(*_with_batch_first(info.batch_size, in_dims, inputs))  # type: ignore[no-untyped-call]
            return found, 0 if isinstance(found, Tensor) else (0,) * len(found)

    Transformable.__name__ = Transformable.__qualname__ = f"{row_map.name}_transformable"
    return Transformable


def _with_batch_first(size: int, in_dims: Sequence[int | None], inputs: Tensors) -> Tensors:
    """The mapped dimension as the first of the rows, and of what else has one."""
    rows = inputs[0].expand(size, *inputs[0].shape)
    if in_dims[0] is not None:
        rows = inputs[0].movedim(in_dims[0], 0)
    batched = [rows]
    for part, dim in zip(inputs[1:], in_dims[1:], strict=True):
        if dim is None:
            batched.append(part)
            continue
        between = (1,) * (rows.ndim - part.ndim)
        moved = part.movedim(dim, 0)
        batched.append(moved.reshape(size, *between, *moved.shape[1:]))
    return tuple(batched)


def _operator(row_map: RowMap) -> Any:
    def solve(*inputs: Tensor) -> Any:
        return _unpacked(tuple(part.contiguous() for part in _packed(row_map.plainly(*inputs))))

    operator = torch.library.custom_op(
        f"hopfy::{row_map.name}", solve, mutates_args=(), schema=row_map.schema
    )

    @operator.register_fake
    def _(*inputs: Tensor) -> Any:
        return _unpacked(row_map.blank(*inputs))

    def setup(ctx: Any, inputs: Tensors, output: Any) -> None:
        ctx.save_for_backward(*row_map.keep(inputs, _packed(output), None))
        ctx.layouts = _layouts(inputs)

    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        found = row_map.vjp(ctx.saved_tensors, cotangents, ctx.needs_input_grad, None)
        return _summed(found, ctx.layouts)

    operator.register_autograd(backward, setup_context=setup)
    return operator


def _layouts(inputs: Tensors) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for part in inputs]


def _summed(
    gradients: Gradients, layouts: Sequence[tuple[torch.Size, torch.dtype]]
) -> tuple[Tensor | None, ...]:
    """The gradients, summed along the dimensions in which an input was broadcast."""
    return tuple(
        None
        if part is None
        else (part if part.shape == shape else part.sum_to_size(shape)).to(dtype)
        for part, (shape, dtype) in zip(gradients, layouts, strict=True)
    )


def _packed(outputs: Any) -> Tensors:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _unpacked(outputs: Tensors) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs
