"""A memory and its files."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hopfy._files.tensors import StoredFile
from hopfy.memory._arrays import ArrayLike
from hopfy.memory._files import open_store, save_snapshot, verify_rows, write_chunks
from hopfy.memory._journal import Journal, has_changes
from hopfy.memory._settings import Compare, Settings
from hopfy.memory._writer import Writer
from hopfy.omega import Omega

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Persistence"]


class Persistence:
    """Saving, loading, and living in a file with a journal."""

    _writer: Writer
    _file: StoredFile | None

    if TYPE_CHECKING:

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, atomically: after a crash it is the old one or the new one.

        The file is in the safetensors format, with the settings as JSON in its header and checksums
        of everything. Recalls may go on meanwhile.
        """
        self._save(path)

    def _save(self, path: str | os.PathLike[str], generation: int = 0) -> None:
        store = self._writer.store
        snapshot = None if store is None else store.snapshot()
        # Read after the snapshot, so that no id of it can be taken again.
        next_id = 0 if store is None else store.next_id
        save_snapshot(path, self._writer.settings, snapshot, next_id, generation)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        omega: Omega | str = "sparsemax",
        beta: float | str = "auto",
        compare: Compare = "distance",
    ) -> Self:
        """A memory that lives in a file: every change is on the disk before its call returns.

        Changes go to a journal beside the file (``path.journal``), so that a few patterns do not
        rewrite millions; `compact` moves them into the file. What was acknowledged survives a crash
        at any moment. Only one memory at a time can have a path open. The settings are those of the
        file if there is one. Use as a context manager, or `close` it.
        """
        target = Path(path)
        journal = Journal(target)
        try:
            memory, generation = cls(omega, beta, compare=compare), 1
            if target.exists():
                opened = open_store(target, False, torch.device("cpu"))
                memory, generation = cls._opened(opened.settings), opened.generation
                memory._writer.store = opened.store
            else:
                memory._save(target, generation)
            for changes in journal.changes(generation):
                memory._writer.replay(changes)
        except BaseException:
            journal.close()
            raise
        writer = memory._writer
        writer.journal, writer.path, writer.generation = journal, target, generation
        codec = None if writer.store is None else writer.store.contents.codec
        writer.recorded = None if codec is None else (codec, len(codec.entries))
        return memory

    def _with_params(self, params: dict[str, Any]) -> Self:
        """A memory with these constructor arguments and the same contents."""
        if self._writer.journal is not None or self._file is not None:
            raise ValueError(
                "expected a memory that lives in no file: the settings of this one are those of its "
                "file. Save it, and load the copy with mmap=False."
            )
        memory, store = type(self)(**params), self._writer.store
        if store is not None:
            contents = store.snapshot().contents
            values = contents.values
            if values is not None and contents.codec is not None:
                values = contents.codec.decoded(values)
            memory._writer.add(contents.patterns, values, contents.ids)
            memory._writer.keep_next_id(store.next_id)
        return memory

    def compact(self) -> None:
        """Move what the journal holds into the file; the journal is empty afterward."""
        with self._writer.batch():
            journal, path = self._writer.journal, self._writer.path
            if journal is None or path is None:
                raise ValueError(
                    "expected a memory that was opened with AssociativeMemory.open, which has a "
                    "journal, got one without; call save to write it to a file."
                )
            journal.check_process()
            self._save(path, self._writer.generation + 1)
            self._writer.generation += 1
            journal.restart(self._writer.generation)

    def close(self) -> None:
        """Let another memory open the file; this one keeps what it holds, without recording."""
        journal, self._writer.journal = self._writer.journal, None
        if journal is not None:
            journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _opened(cls, settings: Settings) -> Self:
        beta = "auto" if settings.beta is None else settings.beta
        return cls(settings.omega, beta, compare=settings.compare)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        mmap: bool = False,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Read a memory that `save` wrote.

        Every byte is compared with its checksum. With ``mmap`` the patterns and values stay on
        disk, may be larger than the machine's memory, cannot be changed, and are compared with
        their checksums only by `verify`. Changes that a journal holds are not read; a warning says
        so.
        """
        opened = open_store(path, mmap, torch.device(device))
        if has_changes(Path(path), opened.generation):
            warnings.warn(
                f"the journal of {str(path)!r} holds changes that are not in the file, and load does "
                "not read them; use AssociativeMemory.open, or compact() where it is open.",
                RuntimeWarning,
                stacklevel=2,
            )
        settings = opened.settings
        memory = cls(
            settings.omega,
            "auto" if settings.beta is None else settings.beta,
            compare=settings.compare,
            device="cpu" if mmap else device,
        )
        memory._writer.store, memory._file = opened.store, opened.file
        return memory

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        patterns: ArrayLike,
        values: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        omega: Omega | str = "sparsemax",
        beta: float | str = "auto",
        compare: Compare = "distance",
    ) -> Self:
        """Write patterns that need not fit in memory to a file and open it with ``mmap``.

        ``patterns`` (N, D) and ``values`` are anything with a shape and slices: `numpy.memmap`, an
        HDF5 data set, a tensor.
        """
        write_chunks(path, Settings.checked(omega, beta, compare), patterns, values, ids)
        return cls.load(path, mmap=True)

    def verify(self) -> None:
        """Compare every byte of a memory-mapped file with its checksum (ValueError if it fails)."""
        if self._file is not None:
            verify_rows(self._file)
