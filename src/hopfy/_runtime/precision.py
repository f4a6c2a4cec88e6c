"""Whether products of float32 tensors keep float32 precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = [
    "autocast_dtype",
    "autocast_is_on",
    "full_precision",
    "leaves_autocast",
    "outside_autocast",
]


def full_precision(tensor: Tensor) -> bool:
    """Whether a matrix product of tensors like this one rounds as its dtype says.

    Torch may compute float32 products with fewer bits if the user allows it (TF32, bfloat16):
    `torch.set_float32_matmul_precision`, ``torch.backends.fp32_precision`` and what is below it.
    """
    if tensor.dtype is not torch.float32:
        return True
    if tensor.device.type == "cpu":
        return _allowed("mkldnn") in ("none", "ieee")
    return _allowed("cuda") in ("none", "ieee")


def _allowed(backend: str) -> str:
    """The precision allowed for matrix products, inherited settings included."""
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:  # before torch 2.9
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return str(getter(backend, "matmul"))


def outside_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which products on the tensor's device are not cast to a smaller dtype.

    A backward pass needs it, too: whoever calls ``backward()`` may have autocast on.
    """
    if not autocast_is_on(tensor):
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def autocast_is_on(tensor: Tensor) -> bool:
    """Whether products on the tensor's device are cast; on some devices, such as meta, they never are."""
    if tensor.is_cpu:
        return torch.is_autocast_enabled("cpu")
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of products on the tensor's device: its own, or the one `torch.autocast` casts to."""
    if not autocast_is_on(tensor):
        return tensor.dtype
    return torch.get_autocast_dtype(tensor.device.type)


Method = TypeVar("Method", bound=Callable[..., Any])


def leaves_autocast(method: Method) -> Method:
    """A method that computes in its inputs' own dtypes, whatever `torch.autocast` is around it."""

    @wraps(method)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        device = "cpu"
        if not torch.is_autocast_enabled(device):
            device = "cuda"
        if not torch.is_autocast_enabled(device):
            return method(*arguments, **options)
        with torch.autocast(device, enabled=False):
            return wrapped(*arguments, **options)  # once more, for the other device

    return wrapped  # type: ignore[return-value]
