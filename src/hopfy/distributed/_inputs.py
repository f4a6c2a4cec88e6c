"""Checks of what one process is given, and digests by which processes compare it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from hopfy._checks import as_scores, expanded
from hopfy._facts import Described, identity_of
from hopfy._runtime.dispatch import with_version

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "QueryLayout",
    "beta_rows",
    "check_layout",
    "checked_shard",
    "checked_values",
    "digest",
    "local",
    "needs_grad",
    "spoil",
]

QueryLayout = Literal["replicated", "sharded"]


def check_layout(layout: object) -> None:
    """Raise unless queries (or patterns) are replicated or sharded."""
    if layout not in get_args(QueryLayout):
        raise ValueError(f"expected layout to be one of {get_args(QueryLayout)}, got {layout!r}.")


def local(memories: Any, mesh: DeviceMesh | None) -> tuple[Any, DeviceMesh | None]:
    """The local part of a `DTensor` and its mesh; anything else as it is."""
    if not isinstance(memories, Tensor) or type(memories).__name__ != "DTensor":
        return memories, mesh
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(memories, DTensor)
    if tuple(memories.placements) != (Shard(0),):
        raise ValueError(
            f"expected a DTensor with placements (Shard(0),), got {memories.placements}; "
            "redistribute it."
        )
    if mesh is not None and mesh != memories.device_mesh:
        raise ValueError("expected the mesh of the DTensor, or none, got another one.")
    return memories.to_local(), memories.device_mesh


def checked_shard(memories: object) -> Tensor:
    rows = as_scores(memories, "memories")
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            "expected the memories of this process of shape (n, D), n >= 0, one pattern per row, got "
            f"shape {tuple(rows.shape)}; a process without memories passes torch.empty(0, D)."
        )
    if rows.device.type != "cpu":
        raise ValueError(
            "expected memories on the CPU, where the exact searches run, got them on "
            f"{rows.device}; call .cpu()."
        )
    if not bool(rows.detach().isfinite().all()):
        raise ValueError(
            "expected finite memories, got NaN or infinity in them; remove those patterns."
        )
    return with_version(rows)


def checked_values(values: object, memories: Tensor) -> Tensor:
    rows = as_scores(values, "values")
    if rows.ndim != 2 or len(rows) != len(memories) or rows.dtype != memories.dtype:
        raise ValueError(
            f"expected values of shape ({len(memories)}, E) and {memories.dtype}, one row for each "
            f"memory of this process, got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    return rows


def beta_rows(beta: float | Tensor, queries: Tensor) -> Tensor:
    """Beta beside each query, (M,), in float64."""
    batch = queries.shape[:-1]
    if not isinstance(beta, Tensor):
        return torch.full((batch.numel(),), float(beta), dtype=torch.float64)
    return expanded(beta.double(), batch, "beta to broadcast over the queries").reshape(-1)


def needs_grad(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def spoil(states: Tensor, queries: Tensor) -> Tensor:
    """NaN where the query was not finite, as in any product."""
    finite = queries.detach().isfinite().all(-1, keepdim=True)
    return states if bool(finite.all()) else torch.where(finite, states, torch.nan)


def digest(value: Any) -> int:
    """A number that tells different inputs apart (64 bits of BLAKE2)."""
    return int.from_bytes(_hash(value).digest(), "little", signed=True)


def _hash(value: Any) -> hashlib.blake2b:
    state = hashlib.blake2b(digest_size=8)
    if isinstance(value, Tensor):
        state.update(f"{value.dtype}{tuple(value.shape)}".encode())
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        state.update(raw.numpy().data)
    elif isinstance(value, Described):
        for name, tensor in sorted(value.tensors().items()):
            state.update(name.encode() + _hash(tensor).digest())
        state.update(identity_of(value).encode())
    elif isinstance(value, list):
        for each in value:
            state.update(_hash(each).digest())
    else:
        state.update(repr(value).encode())
    return state
