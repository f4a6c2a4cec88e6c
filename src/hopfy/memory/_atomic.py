"""A file that is replaced whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # pragma: no cover - no advisory locks on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["replacing", "temporary_beside"]


def temporary_beside(path: Path) -> Path:
    """The one temporary name that belongs to ``path``.

    Only one name: what a killed writer left behind is what the next writer starts from.
    """
    return path.with_name(f".{path.name}.writing")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to write that takes the place of ``path`` only when the block ends well.

    The bytes go to a temporary file in the same folder, reach the disk (fsync), and are renamed
    over ``path``; then the folder itself is flushed. At every moment ``path`` is the old file or
    the new one. Writers of the same path wait for each other, in this process and in others.
    """
    target = Path(os.path.realpath(path))
    temporary = temporary_beside(target)
    file = _open_alone(temporary)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
            _flush_folder(target.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _open_alone(temporary: Path) -> BinaryIO:
    """Open the temporary file, empty, with a lock that ends with this process at the latest."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        file = os.fdopen(os.open(temporary, flags, 0o666), "r+b")
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
            # While we waited, the file may have been renamed to its target: it is no longer ours.
            if not _is_still(temporary, file):
                file.close()
                continue
        file.truncate(0)
        return file


def _is_still(temporary: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.stat(temporary, follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
