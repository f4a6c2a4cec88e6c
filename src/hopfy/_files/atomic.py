"""A file that is replaced whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

_LONGEST_NAME = 255

__all__ = ["replacing", "temporary_beside"]


def temporary_beside(path: Path) -> Path:
    """The one temporary name that belongs to ``path``.

    Only one name: what a killed writer left behind is what the next writer starts from.
    """
    name = f".{path.name}.writing"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.writing"
    return path.with_name(name)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to write that takes the place of ``path`` only when the block ends well.

    The bytes go to a temporary file in the same folder, reach the disk (fsync), and are renamed
    over ``path``, whose mode it takes; then the folder itself is flushed. At every moment ``path``
    is the old file or the new one. Writers of the same path wait for each other, in this process
    and in others.
    """
    target = Path(os.path.realpath(path))
    temporary = temporary_beside(target)
    with _open_alone(temporary) as file:
        try:
            yield file
            file.flush()
            _take_mode(file, target)
            os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            # While the lock is still held: afterward the name may be another writer's.
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise
        _flush_folder(target.parent)


def _take_mode(file: BinaryIO, target: Path) -> None:
    """The new file may be read and written by whom the old one could."""
    if os.name == "posix":
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))


def _open_alone(temporary: Path) -> BinaryIO:
    """Open the temporary file, empty, with a lock that ends with this process at the latest."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        file = os.fdopen(os.open(temporary, flags, 0o666), "r+b")
        # Meanwhile the file may have been renamed to its target: then another one is needed.
        if _lock(file) and not _is_still(temporary, file):
            file.close()
            continue
        file.truncate(0)
        return file


def _lock(file: BinaryIO) -> bool:
    """Wait for the lock; False where the system or the file system has none."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            return False
        file.close()
        raise
    return True


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
