"""Between a store and its file: what is written, and what is believed when it is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._files.tensors import FileFormat, StoredFile, Streamed, write
from hopfy.memory._arrays import ArrayLike, as_ids, as_patterns, as_values, check_finite
from hopfy.memory._blocks import light_blocks
from hopfy.memory._equal_lengths import lifted, radius_for, squared_lengths
from hopfy.memory._separations import Separations
from hopfy.memory._settings import Settings
from hopfy.memory._store import Contents, Snapshot, Store
from hopfy.memory._values import Codec

__all__ = ["Opened", "open_store", "save_snapshot", "verify_rows", "write_chunks"]

KIND = FileFormat("hopfy.AssociativeMemory", version=1, word="memory")

_ROWS = 1 << 12


class Opened(NamedTuple):
    """A file's settings and store; ``file`` is kept where the rows still live in it."""

    settings: Settings
    store: Store | None
    file: StoredFile | None
    generation: int = 0


def save_snapshot(
    path: str | os.PathLike[str],
    settings: Settings,
    snapshot: Snapshot | None,
    next_id: int,
    generation: int = 0,
) -> None:
    tensors: dict[str, Streamed] = {}
    table: dict[str, Any] = {**settings.to_json(), "next_id": next_id, "radius": None}
    if generation:
        table["generation"] = generation
    if snapshot is not None:
        contents, known = snapshot.contents, snapshot.separations_so_far
        table["radius"] = contents.radius
        found = {"rows": contents.rows, "ids": contents.ids, "values": contents.values}
        if known.delta.numel() == len(snapshot) and not bool(known.delta.isnan().any()):
            found |= {"separations": known.delta, "rivals": known.rival}
        if contents.codec is not None:
            table["values"] = contents.codec.kind
            words = json.dumps(contents.codec.entries).encode()
            found["words"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        tensors = {name: Streamed.of(t) for name, t in found.items() if t is not None}
    write(path, KIND, tensors, table)


def write_chunks(
    path: str | os.PathLike[str],
    settings: Settings,
    patterns: ArrayLike,
    values: ArrayLike | None,
    ids: ArrayLike | None,
) -> None:
    """Write patterns that need not fit in memory; they are read twice, some rows at a time."""
    shape = tuple(getattr(patterns, "shape", ()))
    if len(shape) != 2 or not shape[0] or not shape[1]:
        raise ValueError(f"expected patterns of shape (N, D), one per row, got shape {shape}.")
    count, dim = int(shape[0]), int(shape[1])
    dtype = as_patterns(patterns[:1], dim, None).dtype
    numbers = torch.arange(count, device="cpu") if ids is None else as_ids(ids)
    _check_ids(numbers, count)
    radius = None
    if settings.compare == "distance":
        radius = 0.0
        for rows in _pattern_rows(patterns, count, dim, dtype):
            radius = radius_for(squared_lengths(rows), radius)
    width = dim if radius is None else dim + 1
    pieces = _pattern_rows(patterns, count, dim, dtype)
    streams = {
        "rows": Streamed(dtype, (count, width), (_lift(rows, radius) for rows in pieces)),
        "ids": Streamed.of(numbers),
    }
    if values is not None:
        streams["values"] = _value_rows(values, count)
    table = {**settings.to_json(), "next_id": int(numbers.max()) + 1, "radius": radius}
    write(path, KIND, streams, table)


def _pattern_rows(
    patterns: ArrayLike, count: int, dim: int, dtype: torch.dtype
) -> Iterator[Tensor]:
    for start in range(0, count, _ROWS):
        yield as_patterns(patterns[start : start + _ROWS], dim, dtype)


def _lift(rows: Tensor, radius: float | None) -> Tensor:
    return rows if radius is None else lifted(rows, squared_lengths(rows), radius)


def _value_rows(values: ArrayLike, count: int) -> Streamed:
    first = as_values(values[:1], 1, None)
    if len(values) != count:
        raise ValueError(f"expected one value for each of {count} patterns, got {len(values)}.")

    def rows() -> Iterator[Tensor]:
        for start in range(0, count, _ROWS):
            piece = values[start : start + _ROWS]
            yield as_values(piece, len(piece), first)

    return Streamed(first.dtype, (count, *first.shape[1:]), rows())


def open_store(path: str | os.PathLike[str], mmap: bool, device: torch.device) -> Opened:
    """Read a file; with ``mmap`` the rows and the values stay on disk and are not yet verified."""
    file = StoredFile(path, KIND)
    try:
        settings = Settings.from_json(file.settings)
        next_id, radius = file.settings["next_id"], file.settings["radius"]
        generation = file.settings.get("generation", 0)
    except (KeyError, TypeError, ValueError):
        raise file.error("its settings are not those of a memory") from None
    if set(file.entries) - {"rows", "ids", "values", "separations", "rivals", "words"}:
        raise file.error("it holds tensors that no memory has")
    if "rows" not in file.entries:
        return Opened(settings, None, None, generation)
    _check_shapes(file, settings, radius)
    lazy = {"rows", "values"} if mmap else set()
    tensors: dict[str, Tensor] = {}
    for name in file.entries:
        if name not in lazy:
            file.verify(name)
        tensors[name] = file.tensor(name) if name in lazy else file.tensor(name).clone()
    _check_numbers(file, tensors, next_id)
    if not mmap:
        verify_rows(file)
    contents = Contents(
        tensors["rows"] if mmap else tensors["rows"].to(device),
        tensors["ids"],
        tensors["values"].to(device if not mmap else "cpu") if "values" in tensors else None,
        radius,
        _read_codec(file, tensors),
        mapped=mmap,
    )
    known = None
    if "separations" in tensors:
        known = Separations(tensors["separations"], tensors["rivals"])
    return Opened(settings, Store(contents, next_id, known), file if mmap else None, generation)


def _read_codec(file: StoredFile, tensors: dict[str, Tensor]) -> Codec | None:
    if ("words" in tensors) != ("values" in file.settings):
        raise file.error("its values and their words do not belong together")
    if "words" not in tensors:
        return None
    try:
        words = json.loads(tensors["words"].numpy().tobytes())
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError
        codec = Codec(file.settings["values"], words)
    except (TypeError, ValueError, RecursionError):
        raise file.error("the words of its values are not readable") from None
    codes = tensors.get("values")
    if codes is None or codes.dtype is not torch.int64 or len(codec.entries) != len(words):
        raise file.error("its values are not codes of its words")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < len(words):
        raise file.error("its values are not codes of its words")
    return codec


def verify_rows(file: StoredFile) -> None:
    """Read every byte of the patterns and values once: checksums and finite numbers."""
    for name in ("rows", "values"):
        if name in file.entries:
            file.verify(name)
    for block in light_blocks(file.tensor("rows")):
        try:
            check_finite(block, "patterns")
        except ValueError:
            raise file.error("its patterns are not finite") from None


def _check_shapes(file: StoredFile, settings: Settings, radius: Any) -> None:
    entries = file.entries
    rows = entries["rows"]
    lift = settings.compare == "distance"
    if rows.dtype not in (torch.float32, torch.float64) or len(rows.shape) != 2:
        raise file.error("its patterns are not rows of float32 or float64")
    if rows.shape[1] < (2 if lift else 1):
        raise file.error("its patterns have no coordinates")
    real = isinstance(radius, float) and math.isfinite(radius) and radius >= 0
    if lift != real or (not lift and radius is not None):
        raise file.error("its radius does not fit its way of comparing")
    expected = {"ids": (torch.int64, (rows.shape[0],))}
    if "separations" in entries or "rivals" in entries:
        expected["separations"] = (torch.float64, (rows.shape[0],))
        expected["rivals"] = (torch.int64, (rows.shape[0],))
    for name, (dtype, shape) in expected.items():
        if name not in entries or (entries[name].dtype, entries[name].shape) != (dtype, shape):
            raise file.error(f"its {name} do not fit its {rows.shape[0]} patterns")
    if "values" in entries and entries["values"].shape[:1] != rows.shape[:1]:
        raise file.error(f"its values do not fit its {rows.shape[0]} patterns")


def _check_numbers(file: StoredFile, tensors: dict[str, Tensor], next_id: Any) -> None:
    ids = tensors["ids"]
    try:
        _check_ids(ids, ids.numel())
    except ValueError:
        raise file.error("its ids are not different numbers >= 0") from None
    largest = int(ids.max()) if ids.numel() else -1
    if type(next_id) is not int or not largest < next_id < 2**63:
        raise file.error("its next id is already taken")
    rivals = tensors.get("rivals")
    if rivals is not None and bool(((rivals < -1) | (rivals >= ids.numel())).any()):
        raise file.error("its rivals are not rows of it")
    if rivals is not None and bool(tensors["separations"].isnan().any()):
        raise file.error("its separations are not numbers")


def _check_ids(ids: Tensor, count: int) -> None:
    if ids.numel() != count:
        raise ValueError(f"expected one id for each of {count} patterns, got {ids.numel()}.")
    ordered = ids.sort().values
    if bool((ordered[:1] < 0).any()) or bool((ordered.diff() == 0).any()):
        wrong = ordered[:1] if bool(ordered[:1] < 0) else ordered[1:][ordered.diff() == 0][:1]
        raise ValueError(
            f"expected ids >= 0, each once, got {int(wrong)}{' twice' if int(wrong) >= 0 else ''}."
        )
