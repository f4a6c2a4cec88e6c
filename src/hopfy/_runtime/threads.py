"""Rows over a few threads, as many as `torch.get_num_threads()`.

Torch computes with a team of OpenMP threads that keep spinning for a while after their work. Threads
of our own would have to fight them for the cores, so we join that team: `GOMP_parallel`, the entry
point behind every ``#pragma omp parallel``, calls us back on each of its threads. Where torch has no
such team, and in a forked child, which inherits none, a small pool of our own takes its place.

A team waits for its slowest member. Where other processes compute on all cores, that member may not
be running at all, and a region of microseconds takes milliseconds: then the calling thread does the
work alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

__all__ = ["one_thread_if_crowded", "over_rows"]

# Below this many entries a second thread costs more than it saves.
_WORTH_A_THREAD = 32_768
# At most so many pieces per thread: one may get only half a core, and the others should not wait.
_PIECES = 6
# A piece costs some microseconds to hand out.
_WORTH_A_PIECE = 65_536

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def over_rows(kernel: Callable[..., Any], rows: int, work: int, *arguments: Any) -> list[Any]:
    """Call ``kernel(start, stop, *arguments)`` until every row is covered; return its answers.

    ``work`` estimates the whole cost in entries touched; it decides how many threads take part. Threads
    take pieces of rows in turn, and the calling one takes part, so the work gets done however many
    of them come.
    """
    threads = min(torch.get_num_threads(), rows, work // _WORTH_A_THREAD)
    if threads <= 1 or _machine.is_crowded():
        return [kernel(0, rows, *arguments)]
    pieces = min(rows, threads * _PIECES, max(threads, work // _WORTH_A_PIECE))
    edges = [rows * piece // pieces for piece in range(pieces + 1)]
    tickets = count()  # taking the next number is atomic
    answers: list[Any] = []
    failures: list[BaseException] = []
    caller = threading.get_ident()

    def drain(_: object = None) -> None:
        try:
            if threading.get_ident() != caller:
                _stay_attached()
            while (piece := next(tickets)) < pieces:
                answers.append(kernel(edges[piece], edges[piece + 1], *arguments))
        except BaseException as failure:  # cannot cross the team's C frames: raised below
            failures.append(failure)

    team = None if _forked else _torch_team()
    if team is None:
        _run_in_pool(drain, threads)
    else:
        team(_Callback(drain), None, threads, 0)
    if failures:
        raise failures[0]
    return answers


_attached = threading.local()


def _stay_attached() -> None:
    """Let the interpreter keep its state of a thread that it did not start.

    Otherwise every callback makes one and drops it, which takes as long as many kernels do.
    """
    if not hasattr(_attached, "once"):
        _attached.once = ctypes.pythonapi.PyGILState_Ensure()


@contextmanager
def one_thread_if_crowded() -> Iterator[None]:
    """Inside, torch computes on the calling thread alone if other processes use the cores.

    For work of many short torch operations: each of them is a region that waits for the whole team.
    Other threads of this process keep their setting, except that products of matrices share one, and
    that a thread which calls torch for the first time meanwhile begins with one.
    """
    threads = torch.get_num_threads()
    if threads == 1 or not _machine.is_crowded():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- other processes ------------------------------------------------------------------------------


class _Machine:
    """Whether more threads want to run, in all processes, than there are cores.

    Linux counts them; elsewhere the answer is no. The count is read again after a tenth of a second.
    """

    def __init__(self) -> None:
        self._cores = os.cpu_count() or 1
        self._crowded = False
        self._next_look = 0.0

    def is_crowded(self) -> bool:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + 0.1
            self._crowded = _runnable_threads() > self._cores
        return self._crowded


def _runnable_threads() -> int:
    """How many threads of all processes run or wait for a core; 0 if that cannot be told."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return 0


_machine = _Machine()

# --- torch's team ---------------------------------------------------------------------------------

_forked = False


@cache
def _torch_team() -> Callable[..., Any] | None:
    """``GOMP_parallel(callback, data, threads, flags)`` of the library torch itself runs on."""
    library = _openmp_library()
    if library is None:
        return None
    try:
        parallel = ctypes.CDLL(library).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [_Callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


def _openmp_library() -> str | None:
    """The file of the OpenMP runtime torch runs on; None if it cannot be told."""
    if "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    files = {line.split(maxsplit=5)[-1] for line in mapped if "omp.so" in line}
    # Other packages may have brought runtimes of their own.
    own = {file for file in files if Path(torch.__file__).parent in Path(file).parents}
    candidates = own or files
    return candidates.pop() if len(candidates) == 1 else None


# --- a pool of our own ----------------------------------------------------------------------------

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def _run_in_pool(drain: Callable[[], None], threads: int) -> None:
    """Run ``drain`` here and on other threads; never wait for one that has not begun."""
    pool = _shared_pool(threads - 1)
    helpers = [pool.submit(drain) for _ in range(threads - 1)]
    drain()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def _shared_pool(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < size:
        # An outgrown pool finishes what it has and is collected with its last caller.
        _pool, _pool_size = ThreadPoolExecutor(size, thread_name_prefix="hopfy"), size
    return _pool


def _after_fork() -> None:
    global _pool, _pool_size, _forked
    _pool, _pool_size, _forked = None, 0, True


# A forked child inherits the objects but none of the threads behind them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
