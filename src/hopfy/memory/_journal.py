"""An append-only journal beside a memory's file: a few patterns do not rewrite millions.

The journal starts with the generation of the file that it continues. Every record is checked and has
reached the disk before the change is acknowledged. Compaction writes a new file of the next
generation, atomically, and then empties the journal; a crash in between leaves a journal of an older
generation, which the new file already contains.

A record is: four bytes, the payload's length (8), its SHA-256 (32), a CRC of these (4), the payload:
the length of a JSON header (8), the header, and the bytes of its tensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

if sys.platform != "win32":
    import fcntl

__all__ = ["Change", "Journal", "has_changes"]

Change = dict[str, Any]
"""``op``: "add", "remove", "replace" or "clear"; tensors ``ids``, ``patterns``, ``values``; ``words``."""

_MAGIC = b"hpyj"
_HEAD = 4 + 8 + 32 + 4
_TENSORS = ("ids", "patterns", "values")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


class Journal:
    """The journal of the memory file at ``path``, locked for this process alone."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".journal")
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._file: BinaryIO = os.fdopen(os.open(self.path, flags, 0o666), "r+b")
        try:
            self._lock()
        except BaseException:
            self._file.close()
            raise
        self._end = 0
        self._process = os.getpid()

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError(
                    f"expected to be the only writer of {str(self.path)!r}, but another process "
                    "(or another memory in this one) has it open; close that one first, or read "
                    "with AssociativeMemory.load."
                ) from None
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                raise

    @property
    def size(self) -> int:
        """Bytes in the journal."""
        return self._end

    def changes(self, generation: int) -> Iterator[list[Change]]:
        """The recorded changes since ``generation``; what was never acknowledged is dropped."""
        self._file.seek(0)
        raw = self._file.read()
        records = list(self._records(raw))
        started = records[0][0].get("generation") if records else None
        if started is not None and started > generation:
            raise self._error(f"it continues generation {started} of its file, not {generation}")
        if started != generation:
            self.restart(generation)
            return
        self._end = self._valid
        if self._end < len(raw):
            warnings.warn(
                f"dropped {len(raw) - self._end} bytes at the end of {str(self.path)!r}: a change "
                "that was interrupted before it was acknowledged.",
                RuntimeWarning,
                stacklevel=4,
            )
            self._file.truncate(self._end)
        for head, payload in records[1:]:
            yield _decoded(head, payload, self._error)

    def _records(self, raw: bytes) -> Iterator[tuple[dict[str, Any], memoryview]]:
        self._valid = 0
        view = memoryview(raw)
        while self._valid < len(raw):
            at = self._valid
            head = raw[at : at + _HEAD]
            if len(head) < _HEAD or not any(raw[at:]):
                return
            length = int.from_bytes(head[4:12], "little")
            if head[:4] != _MAGIC or zlib.crc32(head[:44]) != int.from_bytes(head[44:], "little"):
                raise self._error(f"its record at byte {at} is damaged")
            payload = view[at + _HEAD : at + _HEAD + length]
            last = at + _HEAD + length >= len(raw)
            if len(payload) < length:
                return
            if hashlib.sha256(payload).digest() != head[12:44]:
                if last:
                    return
                raise self._error(f"its record at byte {at} does not match its checksum")
            size = int.from_bytes(payload[:8], "little")
            try:
                table = json.loads(bytes(payload[8 : 8 + size]))
            except (ValueError, RecursionError):
                raise self._error(f"its record at byte {at} is not readable") from None
            self._valid = at + _HEAD + length
            yield table, payload[8 + size :]

    def append(self, changes: list[Change]) -> None:
        """Record changes; they are on the disk when this returns, or nothing has changed."""
        self.check_process()
        table, chunks = _encoded(changes)
        self._write(table, chunks)

    def check_process(self) -> None:
        """A forked process shares the file and its lock, but not what the other one writes."""
        if self._process != os.getpid():
            raise BlockingIOError(
                f"expected changes of {str(self.path)!r} in process {self._process}, which opened it, "
                f"got one in process {os.getpid()}, forked from it; open the memory in one process "
                "only, or read with AssociativeMemory.load."
            )

    def restart(self, generation: int) -> None:
        """Forget all records: the file of this generation contains them."""
        self._file.truncate(0)
        self._end = 0
        self._write({"generation": generation}, [])

    def _write(self, table: dict[str, Any], chunks: list[bytes]) -> None:
        header = json.dumps(table).encode()
        payload = b"".join([len(header).to_bytes(8, "little"), header, *chunks])
        head = _MAGIC + len(payload).to_bytes(8, "little") + hashlib.sha256(payload).digest()
        head += zlib.crc32(head).to_bytes(4, "little")
        try:
            self._file.seek(self._end)
            self._file.write(head + payload)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            # A full disk: take back what was written, so that the next record is found.
            self._file = _reopened(self._file)
            self._file.truncate(self._end)
            raise
        self._end += len(head) + len(payload)

    def close(self) -> None:
        self._file.close()

    def _error(self, reason: str) -> ValueError:
        return ValueError(
            f"expected {str(self.path)!r} to be a sound journal, but {reason}; restore it from a "
            "copy, or move it away to go on with the file as it was at its last compaction."
        )


def has_changes(path: Path, generation: int) -> bool:
    """Whether a journal beside the memory file at ``path`` holds changes since this generation."""
    try:
        with path.with_name(path.name + ".journal").open("rb") as file:
            length = int.from_bytes(file.read(_HEAD)[4:12], "little")
            first = file.read(min(length, 1 << 16))
            more = bool(file.read(1))
        size = int.from_bytes(first[:8], "little")
        started = json.loads(first[8 : 8 + size])["generation"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return more and bool(started == generation)


def _reopened(file: BinaryIO) -> BinaryIO:
    """The same open file without the bytes that its buffer still wants to write."""
    raw = file.raw if hasattr(file, "raw") else None
    if raw is None:
        return file
    handle = os.dup(file.fileno())
    try:
        file.close()
    except OSError:
        raw.close()
    return os.fdopen(handle, "r+b")


def _encoded(changes: list[Change]) -> tuple[dict[str, Any], list[bytes]]:
    chunks: list[bytes] = []
    tables = []
    for change in changes:
        table = {key: value for key, value in change.items() if key not in _TENSORS}
        for name in _TENSORS:
            tensor: Tensor | None = change.get(name)
            if tensor is None:
                continue
            rows = tensor.detach().cpu().contiguous()
            chunks.append(rows.reshape(-1).view(torch.uint8).numpy().tobytes())
            table[name] = [str(rows.dtype).removeprefix("torch."), list(rows.shape)]
        tables.append(table)
    return {"changes": tables}, chunks


def _decoded(table: dict[str, Any], payload: memoryview, error: Any) -> list[Change]:
    changes, at = [], 0
    try:
        for described in table["changes"]:
            change = dict(described)
            for name in _TENSORS:
                if name not in described:
                    continue
                dtype, shape = _DTYPES[described[name][0]], described[name][1]
                size = math.prod(shape) * dtype.itemsize
                raw = bytearray(payload[at : at + size])
                if len(raw) < size or any(type(n) is not int or n < 0 for n in shape):
                    raise ValueError
                at += size
                flat = (
                    torch.frombuffer(raw, dtype=dtype)
                    if size
                    else torch.empty(0, dtype=dtype, device="cpu")
                )
                change[name] = flat.reshape(shape).clone()
            changes.append(change)
    except (KeyError, TypeError, ValueError, IndexError):
        raise error("a record does not describe a change") from None
    return changes
