"""A sharded memory on disk: one checked file per process and a manifest that names them.

The files carry a random token in their names, and the manifest is replaced atomically after all of
them are complete. So a crash leaves the old manifest with the old files, or the new one with the new
files. The manifest holds a SHA-256 of itself and of the header of each file, whose own checksums
cover every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._files.atomic import replacing
from hopfy._files.tensors import FileFormat, StoredFile, Streamed, write
from hopfy.distributed._files import share
from hopfy.distributed._group import Group
from hopfy.distributed._memory_state import Stored
from hopfy.distributed._separations import Separations
from hopfy.distributed._stored_patterns import StoredPatterns
from hopfy.memory.parts import Codec, Settings, lifted, squared_lengths

__all__ = ["load_shards", "save_shards"]

_SHARD = FileFormat("hopfy.ShardedMemory.shard", version=1, word="memory shard")
_FORMAT, _VERSION = "hopfy.ShardedMemory", 1
_MANIFEST = "manifest.json"


# ------------------------------------------------------------------ writing


def save_shards(
    folder: str | os.PathLike[str],
    settings: Settings,
    stored: Stored | None,
    codec: Codec | None,
    group: Group,
) -> None:
    """Write this process's file; rank 0 writes the manifest when all files are there."""
    target = Path(folder)
    drawn = torch.tensor([secrets.randbits(62)])
    token = f"{int(group.gather(lambda: [drawn])[0][0]):016x}"
    name = f"shard-{token}-{group.rank:05d}-of-{group.size:05d}.safetensors"

    def written() -> str:
        target.mkdir(parents=True, exist_ok=True)
        _write_shard(target / name, stored)
        return _header_digest(target / name)

    seal = group.together(written)
    parts = group.gather(
        lambda: [_as_bytes([name, seal, 0 if stored is None else len(stored.held)])]
    )
    files = [json.loads(bytes(part[0].tolist())) for part in parts]
    before = _names_in(target) if group.rank == 0 else []
    group.together(
        lambda: _write_manifest(target, settings, stored, codec, files) if group.rank == 0 else None
    )
    if group.rank == 0:
        for old in set(before) - {each[0] for each in files}:
            with contextlib.suppress(OSError):
                (target / old).unlink()


def _write_shard(path: Path, stored: Stored | None) -> None:
    tensors: dict[str, Tensor] = {}
    if stored is not None:
        held = stored.held
        found = {
            "patterns": held.patterns,
            "ids": held.ids,
            "numbers": held.numbers,
            "values": held.values,
        }
        tensors = {name: each for name, each in found.items() if each is not None}
    write(path, _SHARD, {name: Streamed.of(each) for name, each in tensors.items()}, {})


def _write_manifest(
    folder: Path, settings: Settings, stored: Stored | None, codec: Codec | None, files: list[Any]
) -> None:
    table: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": settings.to_json(),
        "files": files,
        "next_id": 0 if stored is None else stored.next_id,
        "next_number": 0 if stored is None else stored.next_number,
        "radius": None if stored is None else stored.held.radius,
        "values": None if codec is None else codec.kind,
        "words": [] if codec is None else codec.entries,
    }
    table["sha256"] = _digest_of(table)
    with replacing(folder / _MANIFEST) as file:
        file.write(json.dumps(table, sort_keys=True).encode())


def _digest_of(table: dict[str, Any]) -> str:
    rest = {key: value for key, value in table.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _header_digest(path: Path) -> str:
    with open(path, "rb") as file:
        prefix = file.read(8)
        return hashlib.sha256(prefix + file.read(int.from_bytes(prefix, "little"))).hexdigest()


def _names_in(folder: Path) -> list[str]:
    """The files of the manifest that is there now, if it is readable."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return [each[0] for each in _read_manifest(folder)["files"]]
    return []


# ------------------------------------------------------------------ reading


class _Part(NamedTuple):
    """Some rows of one file."""

    file: StoredFile
    low: int
    high: int


def load_shards(
    folder: str | os.PathLike[str], group: Group
) -> tuple[Settings, Stored | None, Codec | None]:
    """This process's even share of the rows of all files, by the order of storing."""
    source = Path(folder)
    table = group.together(lambda: _read_manifest(source))
    settings, codec = group.together(lambda: _settings_of(source, table))
    files = group.together(lambda: _opened(source, table, group))
    if not any("patterns" in file.entries for file in files):
        return settings, None, codec
    held = group.together(lambda: _own_share(source, files, table, codec, group))
    counts = [int(part[0]) for part in group.gather(lambda: [torch.tensor([len(held)])])]
    gaps = Separations.unknown(len(held))
    return settings, Stored(held, counts, table["next_id"], table["next_number"], gaps), codec


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a folder that ShardedMemory.save wrote, got {str(folder)!r} without a "
            f"{_MANIFEST}."
        )
    try:
        table = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise _unsound(folder, "its manifest is not readable") from None
    if not isinstance(table, dict) or table.get("format") != _FORMAT:
        raise _unsound(folder, f"its manifest does not say that it is a {_FORMAT}")
    if table.get("version") != _VERSION:
        raise ValueError(
            f"expected {str(folder)!r} in version {_VERSION}, got {str(table.get('version'))[:20]}; "
            "open it with the release of hopfy that wrote it."
        )
    if table.get("sha256") != _digest_of(table):
        raise _unsound(folder, "its manifest does not match its checksum")
    return table


def _unsound(folder: Path, reason: str) -> ValueError:
    return ValueError(
        f"expected {str(folder)!r} to hold a sound sharded memory, but {reason}; restore it from a "
        "copy or save the memory again."
    )


def _settings_of(folder: Path, table: dict[str, Any]) -> tuple[Settings, Codec | None]:
    try:
        settings = Settings.from_json(table["settings"])
        words, kind = table["words"], table["values"]
        lift = settings.compare == "distance"
        sound = isinstance(words, list) and all(isinstance(word, str) for word in words)
        numbers = [table["next_id"], table["next_number"], *(each[2] for each in table["files"])]
        sound = sound and all(type(n) is int and 0 <= n < 2**63 for n in numbers)
        sound = sound and (table["radius"] is None or (lift and float(table["radius"]) >= 0))
        sound = sound and all(Path(each[0]).name == each[0] for each in table["files"])
        codec = None if kind is None else Codec(kind, words)
    except (KeyError, TypeError, ValueError, IndexError):
        sound = False
    if not sound:
        raise _unsound(folder, "its settings are not those of a memory")
    return settings, codec


def _opened(folder: Path, table: dict[str, Any], group: Group) -> list[StoredFile]:
    """All files, mapped; each process verifies every byte of some of them."""
    files = []
    for place, (name, seal, count) in enumerate(table["files"]):
        path = folder / name
        if not path.is_file():
            raise _unsound(folder, f"its file {name!r} is missing")
        file = StoredFile(path, _SHARD)
        if _header_digest(path) != seal:
            raise _unsound(folder, f"its file {name!r} is not the one that was saved with it")
        _check_shapes(file, count)
        if place % group.size == group.rank:
            for tensor in file.entries:
                file.verify(tensor)
        files.append(file)
    kinds = {
        tuple((name, each.dtype, each.shape[1:]) for name, each in sorted(file.entries.items()))
        for file in files
    }
    if len(kinds) > 1:
        raise _unsound(folder, "its files hold patterns or values of different kinds")
    return files


def _check_shapes(file: StoredFile, count: int) -> None:
    entries = file.entries
    if not entries and count == 0:
        return
    if set(entries) - {"values"} != {"patterns", "ids", "numbers"}:
        raise file.error("it does not hold the tensors of a memory")
    if any(each.shape[:1] != (count,) for each in entries.values()):
        raise file.error(f"its tensors do not have the {count} rows that the manifest says")
    rows = entries["patterns"]
    if rows.dtype not in (torch.float32, torch.float64) or len(rows.shape) != 2:
        raise file.error("its patterns are not rows of float32 or float64")
    if any(
        entries[name].dtype is not torch.int64 or len(entries[name].shape) != 1
        for name in ("ids", "numbers")
    ):
        raise file.error("its ids and numbers are not integers")


def _own_share(
    folder: Path,
    files: Sequence[StoredFile],
    table: dict[str, Any],
    codec: Codec | None,
    group: Group,
) -> StoredPatterns:
    counts = [each[2] for each in table["files"]]
    first, stop = share(sum(counts), group.rank, group.size)
    parts, start = [], 0
    for file, count in zip(files, counts, strict=True):
        low, high = max(first - start, 0), min(stop - start, count)
        if low < high:
            parts.append(_Part(file, low, high))
        start += count
    parts = parts or [_Part(files[0], 0, 0)]

    def column(name: str) -> Tensor:
        return torch.cat([part.file.tensor(name)[part.low : part.high] for part in parts])

    numbers, order = column("numbers").sort()
    patterns, ids = column("patterns")[order], column("ids")[order]
    values = column("values")[order] if "values" in files[0].entries else None
    _check_numbers(folder, table, patterns, ids, numbers, values, codec)
    radius = table["radius"]
    rows = patterns if radius is None else lifted(patterns, squared_lengths(patterns), radius)
    return StoredPatterns.of(rows, ids, numbers, values, radius)


def _check_numbers(
    folder: Path,
    table: dict[str, Any],
    patterns: Tensor,
    ids: Tensor,
    numbers: Tensor,
    values: Tensor | None,
    codec: Codec | None,
) -> None:
    if not bool(patterns.isfinite().all()):
        raise _unsound(folder, "its patterns are not finite")
    for each, limit in ((ids, table["next_id"]), (numbers, table["next_number"])):
        ordered = each.sort().values
        if bool((ordered.diff() == 0).any()) or bool(((each < 0) | (each >= limit)).any()):
            raise _unsound(folder, "its ids are not different numbers below the next one")
    if (table["radius"] is None) == (table["settings"]["compare"] == "distance"):
        raise _unsound(folder, "its radius does not fit its way of comparing")
    if codec is not None and (
        values is None
        or values.dtype is not torch.int64
        or bool(((values < 0) | (values >= len(codec.entries))).any())
    ):
        raise _unsound(folder, "its values are not codes of its words")


def _as_bytes(thing: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(thing).encode()), dtype=torch.uint8)
