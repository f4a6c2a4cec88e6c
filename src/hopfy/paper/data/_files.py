"""Where the files of a data set are, and how they get here."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Dataset", "MissingDataError", "RemoteFile", "cache_folder", "sha256_of"]


class MissingDataError(RuntimeError):
    """A data set is not here; the message says how to get it."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set: its name, its size in bytes and its SHA-256.

    Whoever packs a file again gets other bytes: ``content`` is the SHA-256 of what a gzip file
    holds, and one of the two must be right.
    """

    name: str
    size: int
    sha256: str
    content: str = ""


@dataclass(frozen=True)
class Dataset:
    """A public data set.

    Attributes:
        name: also the name of its folder in ``$HOPFY_DATA`` and in the cache.
        title: what it is, in a few words.
        files: all that belongs to it.
        mirrors: addresses of folders that hold the files, tried in this order.
        source: for what no mirror holds, where the files come from and how they are made: a clause.
        why: why hopfy does not download it: a clause.
    """

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    mirrors: tuple[str, ...] = ()
    source: str = ""
    why: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def checksum(self) -> str:
        """One checksum for the whole set."""
        every = "".join(f"{file.sha256}  {file.name}\n" for file in self.files)
        return hashlib.sha256(every.encode()).hexdigest()

    def where(self) -> Path | None:
        """The folder that holds every file: in ``$HOPFY_DATA``, else in the cache, else None."""
        for folder in self._folders():
            if all((folder / file.name).is_file() for file in self.files):
                return folder
        return None

    def path(self, name: str) -> Path:
        """A checked file of this set, downloaded if it is not here yet."""
        file = next((file for file in self.files if file.name == name), None)
        if file is None:
            known = ", ".join(file.name for file in self.files)
            raise ValueError(f"expected a file of {self.name} among {known}, got {name!r}.")
        for folder in self._folders():
            path = folder / name
            if path.is_file():
                _check(path, file)
                return path
        return self._download(file)

    def fetch(self) -> Path:
        """Make sure that every file is here and right; returns the folder of the last one."""
        for file in self.files:
            folder = self.path(file.name).parent
        return folder

    def _folders(self) -> list[Path]:
        own = os.environ.get("HOPFY_DATA")
        given = [Path(own).expanduser() / self.name] if own else []
        return [*given, cache_folder() / self.name]

    def _download(self, file: RemoteFile) -> Path:
        if not self.mirrors:
            raise self._missing(file, "no mirror holds it")
        try:
            import pooch
        except ImportError:
            raise self._missing(
                file, "downloads need pooch: pip install 'hopfy[experiments]'"
            ) from None
        pooch.get_logger().setLevel("ERROR")
        reason: Exception | None = None
        for mirror in self.mirrors:
            try:
                found = pooch.retrieve(
                    f"{mirror}/{file.name}",
                    known_hash=f"sha256:{file.sha256}",
                    fname=file.name,
                    path=cache_folder() / self.name,
                )
                return Path(found)
            except (OSError, ValueError) as error:  # no network; or not the file we know
                reason = error
        raise self._missing(file, "no mirror could be reached") from reason

    def _missing(self, file: RemoteFile, why: str) -> MissingDataError:
        if not self.mirrors:
            return MissingDataError(
                f"{self.name} is missing its file {file.name} and {why} ({self.why}); {self.source}, "
                f"and set HOPFY_DATA to a folder in which {self.name}/{file.name} lies."
            )
        return MissingDataError(
            f"{self.name} is missing its file {file.name} and {why}; with a network run "
            f"`hopfy data fetch {self.name}`, or set HOPFY_DATA to a folder in which "
            f"{self.name}/{file.name} lies (from {self.mirrors[0]}/{file.name})."
        )


def cache_folder() -> Path:
    """The folder of this user's downloads.

    Known without pooch, so that what was downloaded once is found without it.
    """
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hopfy"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _holds(path: Path, content: str) -> bool:
    """Whether a gzip file holds what has this SHA-256."""
    digest = hashlib.sha256()
    try:
        with gzip.open(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False
    return digest.hexdigest() == content


def _check(path: Path, file: RemoteFile) -> None:
    found = sha256_of(path)
    if found != file.sha256 and not (file.content and _holds(path, file.content)):
        raise MissingDataError(
            f"expected {path} with SHA-256 {file.sha256}, got {found}; delete the file and fetch "
            "it again."
        )
