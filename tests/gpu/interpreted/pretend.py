"""A GPU that is not there: tensors that say they are on one and keep their numbers on the CPU.

Torch sees a device of a type of its own, which hopfy is told to treat as a GPU: mixing devices is an
error as on a real one, a copy to the host is noted, factories that name the device work, autograd runs.
Triton's interpreter computes what hopfy launches. So the whole path of a call on a GPU runs here, but
for the hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from triton.runtime.interpreter import InterpretedFunction

from hopfy._runtime import backends, dispatch, transfer
from hopfy.functional import _attention

KIND = "pretended"
_setup_privateuseone_for_python_backend(KIND)
aten = torch.ops.aten
# Indices may be on the host, and a copy goes from one device to another.
_MAY_MIX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten.copy_}


@dataclass
class Log:
    """What happened on the device."""

    launches: list[str] = field(default_factory=list)
    copies: int = 0  # tensors of more than one number that went to the host
    reads: int = 0  # single numbers that went there

    @property
    def way(self) -> str:
        """How a call was computed."""
        if self.copies:
            return "CPU"
        return "kernel" if self.launches else "torch"

    @property
    def way_of_attention(self) -> str:
        """The same, and "rows" if torch held all weights and only the map was a kernel."""
        rows = set(self.launches) <= {"forward_kernel", "backward_kernel"}
        return "rows" if self.way == "kernel" and rows else self.way


class OnDevice(Tensor):
    """A tensor on the GPU that is not there."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(KIND, 0),
            requires_grad=inner.requires_grad,
        )
        made.inner = inner.detach()
        return made

    def tolist(self) -> Any:
        _log.reads += 1
        return self.inner.tolist()

    def __repr__(self) -> str:
        return f"OnDevice({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Factories that name the device make tensors there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


_log = Log()
_under_way: list[tuple[Tensor, Tensor]] = []  # copies to the host before the wait for them


def _arrive(_: torch.device) -> None:
    """All copies that are under way reach the host."""
    while _under_way:
        target, source = _under_way.pop()
        target.copy_(source)


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    ours = [x for x in leaves if isinstance(x, OnDevice)]
    packet = func.overloadpacket
    if ours and packet not in _MAY_MIX:
        host = [x for x in leaves if not isinstance(x, OnDevice) and x.ndim > 0]
        if host:
            raise RuntimeError(f"{func}: expected all tensors on one device, got one on the host")
    device = kwargs.get("device")
    if packet is aten._local_scalar_dense and ours:
        _log.reads += 1
    if device is None:
        there = bool(ours)
        if packet is aten.copy_:
            there = isinstance(args[0], OnDevice)
            _log.copies += bool(ours) and not there and args[0].numel() > 1
    else:
        there = torch.device(device).type == KIND
        kwargs = {**kwargs, "device": torch.device("cpu")}
        _log.copies += bool(ours) and not there and ours[0].numel() > 1
    wrappers = {id(x.inner): x for x in ours}
    plain_args, plain_kwargs = tree_map(
        lambda x: x.inner if isinstance(x, OnDevice) else x, (args, kwargs)
    )
    if packet is aten.copy_ and ours and not there and True in args[2:3]:
        _under_way.append((plain_args[0], plain_args[1].clone()))
        return plain_args[0].fill_(-77)  # what is read too early is wrong
    found = func(*plain_args, **plain_kwargs)

    def wrapped(x: Any) -> Any:
        if not there or not isinstance(x, Tensor):
            return x
        return wrappers[id(x)] if id(x) in wrappers else OnDevice(x)

    return tree_map(wrapped, found)


def to_device(tensor: Tensor) -> OnDevice:
    """The tensor on the device, a leaf if it requires grad."""
    return OnDevice(tensor.detach().clone().requires_grad_(tensor.requires_grad))


def to_host(found: Any) -> Any:
    """Every tensor as one on the CPU."""
    return tree_map(lambda x: x.inner if isinstance(x, OnDevice) else x, found)


@contextmanager
def device() -> Iterator[Log]:
    """The device is there, and Triton's kernels run on it."""
    global _log
    _log = Log()
    run = InterpretedFunction.__getitem__

    def getitem(self: Any, grid: Any) -> Any:
        launch = run(self, grid)

        def launched(*args: Any, **options: Any) -> Any:
            _log.launches.append(self.fn.__name__)
            tensors = [x for x in tree_flatten((args, options))[0] if isinstance(x, Tensor)]
            host = [x for x in tensors if not isinstance(x, OnDevice)]
            assert not host, f"{self.fn.__name__} got tensors on the host: {host}"
            args, options = to_host((args, options))
            return launch(*args, **options)

        return launched

    kinds = (Tensor, torch.nn.Parameter, OnDevice)

    def plain(tensor: Tensor) -> bool:
        return (
            type(tensor) in kinds
            and not torch._C._are_functorch_transforms_active()
            and not dispatch.is_tracing()
        )

    with (
        mock.patch.object(InterpretedFunction, "__getitem__", getitem),
        mock.patch.object(backends, "has_plain_memory", plain),
        mock.patch.object(backends, "_ACCELERATORS", (KIND,)),
        mock.patch.object(_attention, "_PLAIN", kinds),
        mock.patch.object(torch.cuda, "device_of", return_value=nullcontext()),
        mock.patch.object(transfer, "_ASYNCHRONOUS", (KIND,)),
        mock.patch.object(
            transfer, "_pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype)
        ),
        mock.patch.object(transfer, "_wait_for", _arrive),
        Device(),
    ):
        yield _log
