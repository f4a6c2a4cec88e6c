"""Finished parts of an experiment, kept so that a stopped run goes on where it was."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hopfy._files.atomic import replacing

__all__ = ["Store"]


class Store:
    """Parts as JSON files in ``folder``, each written whole or not at all, with a checksum.

    A part is found again by its name and by ``depends_on``, everything its result depends on (the
    configuration with its seed, the data's checksum). If any of that changes, the part is computed
    again, and the old file stays for the old configuration.

    Args:
        folder: made when the first part is written.
        depends_on: JSON-able.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()), {"seed": 0})
    >>> store.part("sum", lambda: 1 + 1), store.part("sum", lambda: 1 / 0), store.computed
    (2, 2, 1)
    """

    def __init__(self, folder: Path, depends_on: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self.depends_on = _plain(dict(depends_on or {}))
        self.computed = 0
        """How many parts were computed here rather than found."""
        self.seconds = 0.0
        """How long all parts that were asked for took, in this run or in an earlier one."""

    def narrowed(self, depends_on: Mapping[str, Any]) -> Store:
        """The same folder for parts that depend on less than the whole configuration.

        What else changes leaves them as they are. Their work counts here too.
        """
        return _Narrowed(self, depends_on)

    def part(self, name: str, compute: Callable[[], Any]) -> Any:
        """The part called ``name``: the stored one, or the result of ``compute``, stored.

        What is returned has been through JSON either way, so a resumed run sees the same types
        as the first one.
        """
        path = self.path(name)
        found = self._read(path, name)
        if found is not None:
            self.seconds += found["seconds"]
            return found["result"]
        begun = time.perf_counter()
        result = _plain(compute())
        seconds = time.perf_counter() - begun
        record = {
            "part": name,
            "depends_on": self.depends_on,
            "seconds": seconds,
            "result": result,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps({**record, "sha256": _checksum(record)}, indent=1).encode())
        self.computed += 1
        self.seconds += seconds
        return result

    def path(self, name: str) -> Path:
        """Where the part called ``name`` lies, or will lie."""
        key = json.dumps([name, self.depends_on], sort_keys=True).encode()
        readable = re.sub(r"[^A-Za-z0-9.+-]+", "-", name).strip("-.")[:60]
        return self.folder / f"{readable}.{hashlib.sha256(key).hexdigest()[:16]}.json"

    def _read(self, path: Path, name: str) -> Any:
        """The record, or None where it is missing, damaged or another one's: it is computed again."""
        try:
            record = json.loads(path.read_bytes())
            if not isinstance(record, dict) or _checksum(record) != record.get("sha256"):
                return None
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        if not isinstance(record.get("seconds"), int | float) or "result" not in record:
            return None
        same = record.get("part") == name and record.get("depends_on") == self.depends_on
        return record if same else None


class _Narrowed(Store):
    """A store within another one."""

    def __init__(self, whole: Store, depends_on: Mapping[str, Any]) -> None:
        super().__init__(whole.folder, depends_on)
        self._whole = whole

    def part(self, name: str, compute: Callable[[], Any]) -> Any:
        computed, seconds = self.computed, self.seconds
        result = super().part(name, compute)
        self._whole.computed += self.computed - computed
        self._whole.seconds += self.seconds - seconds
        return result


def _checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a record but the checksum itself."""
    content = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """As it comes back from JSON: keys are strings, tuples are lists."""
    return json.loads(json.dumps(value))
