"""Two threads against one, while other processes compute on all cores, and while none does."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

import hopfy
from hopfy import functional as F

__all__ = ["BusyRow", "bench_busy"]


class BusyRow(NamedTuple):
    """Median times of one operation."""

    operation: str
    other_processes: int
    one_thread_ms: float
    two_threads_ms: float
    two_to_one: float


def bench_busy(progress: Callable[[str], None] = lambda _: None) -> list[BusyRow]:
    """Measure with as many busy processes as there are cores, and with none."""
    generator = torch.Generator().manual_seed(0)
    memories = torch.nn.functional.normalize(torch.randn(20_000, 64, generator=generator), dim=-1)
    network = hopfy.HopfieldNetwork(memories, "sparsemax", 20.0)
    queries = memories[:100] + 0.1 * torch.randn(100, 64, generator=generator)
    scores = torch.randn(2048, 512, generator=generator)
    operations: dict[str, Callable[[], object]] = {
        "retrieve 100 among 20,000 x 64": lambda: network.retrieve(queries),
        "1.5-entmax of 2048 x 512": lambda: F.entmax(scores, 1.5),
        "product of 100 x 64 and 64 x 20,000": lambda: queries @ memories.mT,
    }
    rows = []
    for others in (0, os.cpu_count() or 1):
        with _busy_processes(others):
            for name, call in operations.items():
                progress(f"{name} beside {others} busy processes")
                one, two = _median_times(call)
                rows.append(BusyRow(name, others, 1e3 * one, 1e3 * two, two / one))
    return rows


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5 if count else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _median_times(call: Callable[[], object], rounds: int = 15) -> tuple[float, float]:
    """With one thread and with two; the best of many would hide what waiting costs."""
    before = torch.get_num_threads()
    times: dict[int, list[float]] = {1: [], 2: []}
    try:
        for round in range(rounds + 1):
            for threads, taken in times.items():
                torch.set_num_threads(threads)
                start = time.perf_counter()
                call()
                if round:  # the first call may compile
                    taken.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return statistics.median(times[1]), statistics.median(times[2])
