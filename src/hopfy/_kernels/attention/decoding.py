"""Exact sparse decoding on the CPU: codes of keys, and steps that read few of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._runtime.backends import compiled, runs_compiled
from hopfy._runtime.threads import over_rows

__all__ = [
    "PAGE",
    "Codes",
    "Form",
    "arrays_of",
    "can_encode",
    "decode",
    "encode",
    "form_of",
    "is_finite",
]

PAGE = 64

Array = np.ndarray[Any, Any]


class Codes(NamedTuple):
    """8-bit keys of G groups: codes (G, pages, D, PAGE), their units (G, N), errors (G, pages)."""

    codes: Array
    units: Array
    errors: Array


class Form(NamedTuple):
    """Entmax or normmax with one alpha, or one for each row."""

    norm: bool
    alpha: Array


def can_encode(keys: Tensor) -> bool:
    """Whether the compiled loops are there and serve keys of this kind."""
    return runs_compiled(keys) and compiled("attention.cpu_decoding") is not None


def encode(codes: Codes | None, keys: Tensor, first: int, last: int) -> Codes:
    """Codes of the keys (B, H, room, D) with [first, last) added."""
    loops: Any = compiled("attention.cpu_decoding")
    flat = keys.flatten(0, 1).numpy()
    groups, room, size = flat.shape
    if codes is None or codes.units.shape[1] < room:
        grown = Codes(
            np.zeros((groups, room // PAGE, size, PAGE), np.int8),
            np.zeros((groups, room), np.float32),
            np.zeros((groups, room // PAGE), np.float32),
        )
        if codes is not None:
            for new, old in zip(grown, codes, strict=True):
                new[:, : old.shape[1]] = old
        codes = grown
    work = groups * (last - first) * size * 4
    over_rows(loops.encode, groups, work, flat, *codes, first, last)
    return codes


def is_finite(query: Tensor) -> bool:
    """Whether there is no NaN or infinity; on the CPU NumPy answers sooner than torch."""
    if query.device.type != "cpu" or query.dtype not in (torch.float32, torch.float64):
        return bool(query.isfinite().all())
    return bool(np.isfinite(query.detach().numpy()).all())


def form_of(closed_form: Any, query: Tensor) -> Form | None:
    """A map that decodes sparsely; None for the others."""
    if closed_form is None or closed_form[0] not in ("entmax", "normmax"):
        return None
    kind, parameter = closed_form
    norm = kind == "normmax"
    if isinstance(parameter, Tensor) and parameter.ndim:
        rows = query.shape[:-1]
        alpha = parameter.detach().double()
        alpha = (alpha.squeeze(-1) if alpha.ndim > len(rows) else alpha).expand(rows)
        form = Form(norm, alpha.reshape(-1).contiguous().numpy())
    else:
        form = Form(norm, np.array([float(parameter)]))
    low, high = float(form.alpha.min()), float(form.alpha.max())
    return form if low > 1 and (high < np.inf if norm else high <= 2) else None


def arrays_of(keys: Tensor, values: Tensor) -> tuple[Array, Array]:
    """Views (G, room, D) and (G, room, E) of keys and values of G groups."""
    return keys.flatten(0, 1).numpy(), values.flatten(0, 1).numpy()


def decode(
    codes: Codes,
    query: Tensor,
    arrays: tuple[Array, Array],
    ranges: tuple[Array, Array],
    scale: float,
    form: Form,
) -> tuple[Tensor, Array, Array]:
    """Output (B, Hq, 1, E), and how many keys each row read and selected."""
    loops: Any = compiled("attention.cpu_decoding")
    keys, values = arrays
    batch, heads, _, size = query.shape
    rows = batch * heads
    output = query.new_empty(batch, heads, 1, values.shape[2])
    read, chosen = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    over_rows(
        loops.decode,
        rows,
        int((ranges[1] - ranges[0]).sum()) * size // 4,
        query.reshape(rows, size).contiguous().numpy(),
        keys,
        values,
        *codes,
        *ranges,
        rows // keys.shape[0],
        float(scale),
        form.alpha,
        form.norm,
        output.view(rows, -1).numpy(),
        read,
        chosen,
    )
    return output, read, chosen
