"""Machine code of kernels on disk, so that each is compiled once for a machine.

numba's own cache does not notice when a helper in another file has changed, raises when a file is
damaged, and runs whatever machine code it finds. Here every file carries a checksum and a stamp of
its source and of all that this imports; a file that does not fit is the same as none, and failing
to write is harmless.

The folder is ``$NUMBA_CACHE_DIR`` if set. Otherwise the code lies beside the package, where an
installation by root serves every user, or, where that cannot be written, in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["KernelCache"]

_PACKAGE = Path(__file__).parent.parent
_SLOW = 1.0  # seconds of compiling after which the user learns what is going on
_announced: set[str] = set()


class KernelCache:
    """The compiled versions of one function, one file for each signature and processor."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}".removeprefix("hopfy.")
        self._source = Path(function.__code__.co_filename)
        self._notice: threading.Timer | None = None

    @property
    def cache_path(self) -> str:
        """Where the code is written (numba shows it in its statistics)."""
        return str(_folders()[0])

    def enable(self) -> None:
        """Part of numba's protocol; this cache is always enabled."""

    def disable(self) -> None:
        """Part of numba's protocol; this cache is always enabled."""

    def flush(self) -> None:
        """Forget everything about this function (numba calls this to compile afresh)."""
        for folder in _folders():
            for path in folder.glob(f"{self._name}-*"):
                with suppress(OSError):
                    path.unlink()

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function; None if it has to be compiled."""
        from numba.core.compiler import CompileResult

        target.refresh()
        file, stamp = self._file(signature, target.codegen()), _stamp(self._source)
        for folder in _folders():
            content = _read_checked(folder / file, stamp)
            if content is None:
                continue
            with suppress(Exception):  # whatever is wrong with it, compiling helps
                return CompileResult._rebuild(target, *pickle.loads(content))
        self._notice = _announce_later(self._name)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep the compiled function if there is a place for it."""
        if self._notice is not None:
            self._notice.cancel()
        from numba.core.serialize import dumps

        file = self._file(signature, result.codegen)
        with suppress(Exception):  # nothing is lost but the time to compile it again
            content = dumps(result._reduce())
            stamp = _stamp(self._source)
            any(_write_checked(folder / file, stamp, content) for folder in _folders())

    def _file(self, signature: Any, codegen: Any) -> str:
        import numba

        about = (
            str(signature),
            codegen.magic_tuple(),
            (numba.__version__, numba.config.OPT, numba.config.BOUNDSCHECK),
            sys.version_info[:2],
        )
        return f"{self._name}-{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.kernel"


# --- files ----------------------------------------------------------------------------------------


def _folders() -> list[Path]:
    """Where to look for compiled code, and in this order where to write it."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen) / "hopfy"]
    place = hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:8]
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return [_PACKAGE / "_kernels" / "__pycache__", user / "hopfy" / f"kernels-{place}"]


@cache
def _stamp(source: Path) -> bytes:
    """A hash of a source file and of all it imports from this package, directly or not."""
    stamp = hashlib.sha256()
    for path in sorted(_with_imports(source)):
        stamp.update(path.read_bytes())
    return stamp.digest()


_IMPORT = re.compile(r"^ *from hopfy\.([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)


def _with_imports(source: Path) -> set[Path]:
    found, open_ends = {Path(__file__)}, [source]
    while open_ends:
        path = open_ends.pop()
        if path in found:
            continue
        found.add(path)
        for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
            place = _PACKAGE.joinpath(*module.split("."))
            inside = [place / name for name in re.findall(r"\w+", names)]
            for one in [place, *inside]:
                candidates = one.with_name(one.name + ".py"), one / "__init__.py"
                open_ends += [file for file in candidates if file.is_file()]
    return found


def _read_checked(path: Path, expected: bytes) -> bytes | None:
    """The content of a file that is complete and belongs to the sources with this stamp."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    stamp, digest, content = raw[:32], raw[32:64], raw[64:]
    if stamp != expected or digest != hashlib.sha256(content).digest():
        return None
    return content


def _write_checked(path: Path, stamp: bytes, content: bytes) -> bool:
    """Write the file as a whole or not at all; False if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError:
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(stamp + hashlib.sha256(content).digest() + content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        return False
    return True


# --- the notice -----------------------------------------------------------------------------------


def _announce_later(name: str) -> threading.Timer | None:
    """Say on stderr, once per operation, that a compilation takes more than a second."""
    operation = name.removeprefix("_kernels.").split(".")[0]
    if os.environ.get("HOPFY_QUIET") or operation in _announced:
        return None
    timer = threading.Timer(_SLOW, _announce, [operation])
    timer.daemon = True
    timer.start()
    return timer


def _announce(operation: str) -> None:
    if operation in _announced:
        return
    _announced.add(operation)
    print(
        f"hopfy: compiling {operation} for this processor; the next process finds it compiled. "
        "(`hopfy warm-up` compiles everything ahead, HOPFY_QUIET=1 hides this line.)",
        file=sys.stderr,
        flush=True,
    )
