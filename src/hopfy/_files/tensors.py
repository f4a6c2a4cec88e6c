"""Tensors and settings in one safetensors file, with checksums; nothing in it is ever executed.

The layout is that of safetensors: eight bytes with the header's length, a JSON header, the data.
The header's ``__metadata__`` holds our format and version, the settings as JSON, a SHA-256 of every
tensor and a SHA-256 of the header itself (taken with that one field zeroed). One file, so that no
crash can separate the numbers from their description.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from hopfy._files.atomic import replacing

__all__ = ["FileFormat", "StoredFile", "Streamed", "write"]

_DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BLANK = "0" * 64
_CHUNK = 1 << 23
_ALIGN = 64
_LARGEST_HEADER = 1 << 20


@dataclass(frozen=True)
class FileFormat:
    """What a file is: the name and version written in it, and the word for it in messages."""

    name: str
    version: int
    word: str


@dataclass(frozen=True)
class Streamed:
    """A tensor that comes in blocks of rows and is never held whole."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: Iterable[Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> Streamed:
        rows = tensor.detach() if tensor.ndim else tensor.detach().reshape(1)
        row = rows[:1].numel() * rows.element_size()
        return cls(
            tensor.dtype, tuple(tensor.shape), torch.split(rows, max(1, _CHUNK // max(1, row)))
        )


def write(
    path: str | os.PathLike[str],
    kind: FileFormat,
    tensors: Mapping[str, Streamed],
    settings: Mapping[str, Any],
) -> None:
    """Write tensors and settings to ``path``, atomically and a block at a time."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            known = ", ".join(sorted(str(dtype) for dtype in _NAMES))
            raise TypeError(f"expected {name} of a dtype among {known}, got {tensor.dtype}.")
    # Widest first: every tensor then starts at a multiple of its own item size.
    ordered = dict(sorted(tensors.items(), key=lambda pair: -pair[1].dtype.itemsize))
    digests = dict.fromkeys(ordered, _BLANK)
    with replacing(path) as file:
        file.write(_header(kind, ordered, settings, digests))
        for name, tensor in ordered.items():
            digests[name] = _write_rows(file, name, tensor)
        file.seek(0)
        file.write(_header(kind, ordered, settings, digests))


def _write_rows(file: BinaryIO, name: str, tensor: Streamed) -> str:
    """Write the rows and return the checksum of their bytes."""
    digest, count = hashlib.sha256(), 0
    for block in tensor.rows:
        # NumPy has no bfloat16: bytes need no dtype.
        chunk = block.to("cpu", tensor.dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(chunk.data)
        file.write(chunk.data)
        count += block.shape[0]
    expected = tensor.shape[0] if tensor.shape else 1
    if count != expected:
        raise ValueError(f"expected {expected} rows of {name}, got {count}.")
    return digest.hexdigest()


def _header(
    kind: FileFormat,
    tensors: Mapping[str, Streamed],
    settings: Mapping[str, Any],
    digests: Mapping[str, str],
) -> bytes:
    """The length prefix and the JSON header, padded with spaces; its size depends on no digest."""
    metadata = {
        "format": kind.name,
        "version": str(kind.version),
        "settings": json.dumps(settings, sort_keys=True, allow_nan=False),
        "tensor_sha256": json.dumps(digests, sort_keys=True),
        "header_sha256": _BLANK,
    }
    content: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        size = math.prod(tensor.shape) * tensor.dtype.itemsize
        content[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    blank = _packed(content)
    metadata["header_sha256"] = hashlib.sha256(blank).hexdigest()
    return _packed(content)


def _packed(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class StoredFile:
    """An opened and understood file: its settings are read, its tensors are still on disk.

    Nothing larger than the header is allocated before sizes, offsets and the file's length agree.
    """

    def __init__(self, path: str | os.PathLike[str], kind: FileFormat) -> None:
        self.path, self.kind = Path(path), kind
        with open(self.path, "rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            header = self._read_header(file)
            self.settings, self._digests = self._read_metadata(header)
            self.entries = self._read_entries(header)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def error(self, reason: str) -> ValueError:
        return ValueError(
            f"expected {str(self.path)!r} to be a sound {self.kind.word} file, but {reason}; "
            f"restore it from a copy or save the {self.kind.word} again."
        )

    def tensor(self, name: str) -> Tensor:
        """The tensor as a view of the mapped file: reading reads the disk, writing is forbidden."""
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=entry.dtype)
        mapped = np.asarray(_Mapped(self._map, entry.start, entry.stop))
        return torch.from_numpy(mapped).view(entry.dtype).view(entry.shape)

    def verify(self, name: str) -> None:
        """Compare the tensor's bytes on disk with its checksum, chunk by chunk."""
        entry = self.entries[name]
        digest = hashlib.sha256()
        with memoryview(self._map) as view:
            for start in range(entry.start, entry.stop, _CHUNK):
                with view[start : min(start + _CHUNK, entry.stop)] as chunk:
                    digest.update(chunk)
        if digest.hexdigest() != self._digests.get(name):
            raise self.error(f"the bytes of its tensor {name!r} do not match their checksum")

    def _read_header(self, file: BinaryIO) -> dict[str, Any]:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > self._size - 8:
            raise self.error(
                f"its {self._size} bytes are fewer than its header announces (truncated, or "
                "another kind of file)"
            )
        if length > _LARGEST_HEADER:
            raise self.error(f"its header claims {length} bytes (another kind of file)")
        raw = file.read(length)
        self._data = 8 + length
        try:
            header = json.loads(raw)
        except (ValueError, RecursionError):
            raise self.error(
                "its header is not readable (damaged, or another kind of file)"
            ) from None
        if not isinstance(header, dict):
            raise self.error("its header is not a table")
        self._raw = prefix + raw
        return header

    def _read_metadata(self, header: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        metadata = header.get("__metadata__")
        if not isinstance(metadata, dict) or metadata.get("format") != self.kind.name:
            raise self.error(f"it does not say that it is a {self.kind.name} file")
        if metadata.get("version") != str(self.kind.version):
            raise ValueError(
                f"expected {str(self.path)!r} in version {self.kind.version} of the "
                f"{self.kind.word} format, got version {str(metadata.get('version'))[:20]!r}; "
                "open it with the release of hopfy that wrote it."
            )
        claimed = metadata.get("header_sha256")
        if not isinstance(claimed, str) or len(claimed) != len(_BLANK):
            raise self.error("its header has no checksum")
        blank = self._raw.replace(claimed.encode(), _BLANK.encode(), 1)
        if hashlib.sha256(blank).hexdigest() != claimed:
            raise self.error("its header does not match its checksum (damaged)")
        return self._table(metadata, "settings"), self._table(metadata, "tensor_sha256")

    def _table(self, metadata: dict[str, Any], key: str) -> dict[str, Any]:
        try:
            table = json.loads(metadata[key])
        except (KeyError, TypeError, ValueError, RecursionError):
            table = None
        if not isinstance(table, dict):
            raise self.error(f"its {key} are missing or unreadable")
        return table

    def _read_entries(self, header: dict[str, Any]) -> dict[str, _Entry]:
        entries = {
            name: self._entry(name, fields)
            for name, fields in header.items()
            if name != "__metadata__"
        }
        end = self._data
        for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].start, pair[1].stop)):
            if entry.start != end:
                raise self.error(f"its tensor {name!r} overlaps another or leaves a gap")
            end = entry.stop
        if end != self._size:
            raise self.error(
                f"its tensors need {end} bytes and the file has {self._size} (truncated or longer)"
            )
        return entries

    def _entry(self, name: str, fields: Any) -> _Entry:
        try:
            dtype, shape, (start, stop) = (
                fields["dtype"],
                fields["shape"],
                fields["data_offsets"],
            )
            sizes = [*shape, start, stop]
        except (KeyError, TypeError, ValueError):
            raise self.error(f"its tensor {name!r} is not described") from None
        if any(type(size) is not int or not 0 <= size < 2**63 for size in sizes) or len(shape) > 64:
            raise self.error(f"its tensor {name!r} has impossible sizes")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise self.error(f"its tensor {name!r} has the unknown dtype {str(dtype)[:20]!r}")
        size = math.prod(shape) * _DTYPES[dtype].itemsize
        if size != stop - start:
            raise self.error(
                f"its tensor {name!r} needs {size} bytes by its shape and has {stop - start}"
            )
        if (self._data + start) % _DTYPES[dtype].itemsize:
            raise self.error(f"its tensor {name!r} starts between two items")
        return _Entry(_DTYPES[dtype], tuple(shape), self._data + start, self._data + stop)


class _Mapped:
    """Bytes of a read-only map, lent to NumPy without a copy; the map lives as long as the array.

    A private writable map would need no such class, but the system may refuse one that is larger
    than its memory, which is the very case the map is for.
    """

    def __init__(self, source: mmap.mmap, start: int, stop: int) -> None:
        self._source = source
        whole = np.frombuffer(source, dtype=np.uint8)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (stop - start,),
            "data": (whole.ctypes.data + start, False),
        }
