"""Real process groups for tests: started once, given many tasks."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["judges.warm"])


def _start_server() -> None:
    """Start the process that all others are forked from, able to import what it preloads."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1")
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Processes:
    """``size`` processes with a gloo group; `run` calls a function on all of them."""

    def __init__(self, size: int, timeout: float = 300.0) -> None:
        _start_server()
        self.size, self._timeout = size, timeout
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")
        self._pipes: list[Connection] = []
        self.workers = []
        for rank in range(size):
            here, there = _CONTEXT.Pipe()
            worker = _CONTEXT.Process(target=_serve, args=(rank, size, store, there), daemon=True)
            worker.start()
            there.close()
            self._pipes.append(here)
            self.workers.append(worker)

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def answers(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """What each process returned; an exception object where it raised one that is expected."""
        found = []
        for rank in range(self.size) if ranks is None else ranks:
            pipe = self._pipes[rank]
            if not pipe.poll(self._timeout):
                raise TimeoutError(f"rank {rank} of {self.size} hangs")
            fine, answer = pipe.recv()
            if not fine:
                raise AssertionError(f"rank {rank} of {self.size} failed:\n{answer}")
            found.append(answer)
        return found

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(rank, size, *arguments)`` on all processes."""
        self.start(function, *arguments)
        return self.answers()

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for worker in self.workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()
        self._folder.cleanup()


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=120),
    )
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            torch.manual_seed(0)
            pipe.send((True, function(rank, size, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    os._exit(0)  # a group that lost a process may not close in time


def refused_by_all(
    found: list[dict[str, tuple[str, str]]], everywhere: tuple[str, ...] = ()
) -> None:
    """Bad input on the last process is an error there that explains itself, and one on all others.

    ``found`` has, for each process and each bad input, the name and the text of the error. Inputs
    that are wrong ``everywhere`` are a ValueError on all processes.
    """
    *others, guilty = found
    for what, (name, text) in guilty.items():
        assert name in ("ValueError", "TypeError", "DisagreementError"), f"{what}: {name} {text}"
        assert "expected" in text
        assert "got" in text
    for seen in others:
        for what, (name, text) in seen.items():
            agreed = guilty[what][0] == "DisagreementError"
            remote = "DisagreementError" if agreed else "RemoteError"
            assert name == ("ValueError" if what in everywhere else remote), f"{what}: {text}"
            if name == "RemoteError":
                assert "rank 2" in text
                assert guilty[what][1][:60] in text
