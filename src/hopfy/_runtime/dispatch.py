"""The state of torch's dispatcher: who traces, transforms or records at this moment.

Every question about it is asked here, so that a change inside torch is one change here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    is_legacy_batchedtensor,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

__all__ = [
    "current_autograd_node",
    "forward_mode_is_active",
    "has_plain_memory",
    "has_values",
    "is_batched",
    "is_compiling",
    "is_exporting",
    "is_in_onnx_export",
    "is_tracing",
    "records_gradients",
    "transforms_are_active",
    "transforms_differentiate",
    "values_can_be_read",
    "with_version",
]


def is_compiling() -> bool:
    """Whether `torch.compile` or `torch.export` traces the code that runs now."""
    return torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Whether `torch.export` traces it: what is exported has to run without hopfy."""
    return torch.compiler.is_exporting()


def is_tracing() -> bool:
    """Whether `torch.jit.trace` or an ONNX export records the operations that run now.

    Neither can keep hopfy's operators: both need plain torch. No export to ONNX runs before
    `torch.onnx` is imported, which takes a while.
    """
    if torch._C._get_tracing_state() is not None:
        return True
    return "torch.onnx" in sys.modules and is_in_onnx_export()


def is_in_onnx_export() -> bool:
    """Whether an ONNX export records the operations that run now; may import `torch.onnx`."""
    return torch.onnx.is_in_onnx_export()


def transforms_are_active() -> bool:
    """Whether a transform of `torch.func` (vmap, grad, jvp ...) is around the code that runs now."""
    return torch._C._are_functorch_transforms_active()


def transforms_differentiate() -> bool:
    """Whether one of these transforms differentiates; what it computes may be differentiated again."""
    if not torch._C._are_functorch_transforms_active():
        return False
    if torch.compiler.is_compiling():
        return True  # a graph cannot ask which one it is
    kinds = TransformType.Grad, TransformType.Jvp
    return any(transform.key() in kinds for transform in get_interpreter_stack() or ())


def forward_mode_is_active() -> bool:
    """Whether tangents of forward-mode differentiation are carried along."""
    return forward_ad._current_level >= 0


def records_gradients(*tensors: Tensor) -> bool:
    """Whether autograd records what is computed from these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return False


def current_autograd_node() -> Any:
    """The node of the graph whose backward pass runs now, in a hook of that node."""
    return torch._C._current_autograd_node()


def with_version(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is an inference tensor, which does not count changes in place."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def is_batched(tensor: Tensor | None) -> bool:
    """Whether it stands for many tensors: a cotangent of ``torch.autograd.grad(is_grads_batched=True)``.

    Such a call is no transform of `torch.func`, and its tensors look like any others.
    """
    return tensor is not None and is_legacy_batchedtensor(tensor)


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a kernel may read the tensor's memory: it is no subclass's, tracer's or vmap's."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch._C._are_functorch_transforms_active()
        and not is_tracing()
    )


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether reading a value neither stalls a device, nor breaks a graph, nor fails inside vmap."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not is_tracing()
        and has_values(tensor)
    )


def has_values(tensor: Tensor) -> bool:
    """Whether the tensor is more than a shape: a compiler's tracer passes tensors without values."""
    return type(tensor) is Tensor or not isinstance(tensor, FakeTensor | FunctionalTensor)
