"""Two processes beside one, and simulated shards: is the work really shared?

One process holds all patterns; two others hold half of them each. All have one thread, run in turns
in one session, and are checked to give the same answer first. The bare product of the same queries
and patterns, on one process and on two at once, shows what the machine itself allows. Wall times
need a quiet machine with two free cores; the CPU time of each process does not.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hopfy.distributed import ShardedHopfieldNetwork, simulate
from hopfy.network import HopfieldNetwork
from hopfy.omega import Tsallis

__all__ = ["DistributedRow", "bench_distributed"]

_ROUNDS = 7
_QUERIES = 64
_BETA = 4.0
_BLOCK = 8192
_Times = tuple[float, float, int]


class DistributedRow(NamedTuple):
    """One measurement.

    Attributes:
        name: what was run.
        milliseconds: per query, wall time: the median over the rounds.
        cpu: per query, CPU milliseconds of the busiest process.
        to_half: wall time over half of one process's, the median of the rounds' own ratios.
        best_to_half: the least of these ratios.
        cpu_to_half: CPU time of the busiest process over half of one process's.
        sent: bytes that one process sends per query.
        checked: whether the answers are those of one process.
    """

    name: str
    milliseconds: float
    cpu: float
    to_half: float | None
    best_to_half: float | None
    cpu_to_half: float | None
    sent: float
    checked: bool


def bench_distributed(progress: Callable[[str], None] = lambda _: None) -> list[DistributedRow]:
    """1,000,000 x 128 on one and on two processes; 64 to 1,024 simulated shards."""
    rows = []
    for name, rank in (("Gaussian", None), ("low-rank", 16)):
        progress(f"{name} 1,000,000 x 128")
        rows += _shared(f"{name} 1,000,000 x 128", 1_000_000, 128, rank)
    for shards in (64, 256, 1024):
        progress(f"{shards} simulated shards")
        rows += _simulated(262_144, 64, shards)
    return rows


def patterns(first: int, stop: int, size: int, rank: int | None) -> Tensor:
    """Unit rows ``first .. stop`` of an endless list, in blocks of their own seeds."""
    block = 50_000
    found = []
    for number in range(first // block, -(-stop // block)):
        generator = torch.Generator().manual_seed(number)
        rows = torch.randn(block, size if rank is None else rank, generator=generator)
        if rank is not None:
            mix = torch.randn(rank, size, generator=torch.Generator().manual_seed(10**6))
            rows = rows @ mix + 0.1 * torch.randn(block, size, generator=generator)
        low, high = max(first - number * block, 0), min(stop - number * block, block)
        found.append(torch.nn.functional.normalize(rows)[low:high])
    return torch.cat(found)


def cues(total: int, count: int, size: int, rank: int | None) -> Tensor:
    """Damaged copies of ``count`` patterns, spread evenly over all ``total`` of them."""
    places = [(2 * place + 1) * total // (2 * count) for place in range(count)]
    clean = torch.cat([patterns(place, place + 1, size, rank) for place in places])
    noise = torch.randn(count, size, generator=torch.Generator().manual_seed(99))
    return clean + 0.05 * noise


# ------------------------------------------------------------------ real processes


class _Worker:
    """A process that holds some patterns and updates queries when it is told to."""

    def __init__(self, *task: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, *task), daemon=True)
        self._process.start()

    def start(self, what: str) -> None:
        self._pipe.send(what)

    def answer(self) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send("stop")
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()


def _work(
    pipe: Connection, store: str, rank: int, size: int, count: int, width: int, low: int | None
) -> None:
    """Serve one network; rank -1 holds everything and joins no group."""
    try:
        torch.set_num_threads(1)
        first, stop = (0, count) if rank < 0 else (count * rank // size, count * (rank + 1) // size)
        own = patterns(first, stop, width, low)
        asked = cues(count, _QUERIES, width, low)
        network: Any
        if rank < 0:
            network = HopfieldNetwork(own, Tsallis(2.0), _BETA)
        else:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=size
            )
            network = ShardedHopfieldNetwork(own, Tsallis(2.0), _BETA)
        for _ in range(3):  # compile, index and plan
            states = network.update(asked)
        pipe.send(states)
    except Exception as error:
        pipe.send(error)
        return
    while (what := pipe.recv()) != "stop":
        sent = 0 if rank < 0 else network.traffic.sent
        wall, cpu = time.perf_counter(), time.process_time()
        if what == "update":
            network.update(asked)
        else:
            _product(asked, own)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        pipe.send((wall, cpu, 0 if rank < 0 else network.traffic.sent - sent))
    os._exit(0)


def _product(queries: Tensor, memories: Tensor) -> None:
    """The bare product, block by block into one buffer: what the machine can share out at best."""
    buffer = torch.empty(_BLOCK, len(queries))
    for block in torch.split(memories, _BLOCK):
        torch.mm(block, queries.mT, out=buffer[: len(block)])


def _shared(name: str, count: int, width: int, low: int | None) -> list[DistributedRow]:
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        pair = [_Worker(store, rank, 2, count, width, low) for rank in range(2)]
        alone = _Worker(store, -1, 1, count, width, low)
        try:
            judge = alone.answer()
            checked = all(torch.equal(worker.answer(), judge) for worker in pair)
            runs = {
                what: [(_timed([alone], what), _timed(pair, what)) for _ in range(_ROUNDS)]
                for what in ("update", "product")
            }
        finally:
            for worker in (alone, *pair):
                worker.close()
    rows = _rows(name, runs["update"], checked)
    if low is None:  # the product is the same for all patterns
        rows += _rows(f"{name}, bare product", runs["product"], True)
    return rows


def _rows(name: str, runs: list[tuple[_Times, _Times]], checked: bool) -> list[DistributedRow]:
    ones, twos = zip(*runs, strict=True)
    ratios = sorted(two[0] / (one[0] / 2) for one, two in runs)
    cpu = min(two[1] for two in twos) / (min(one[1] for one in ones) / 2)
    scale = 1e3 / _QUERIES
    return [
        DistributedRow(
            f"{name}, one process", scale * _median([one[0] for one in ones]),
            scale * min(one[1] for one in ones), 2.0, 2.0, 2.0, 0.0, True,
        ),
        DistributedRow(
            f"{name}, two processes", scale * _median([two[0] for two in twos]),
            scale * min(two[1] for two in twos), _median(ratios), ratios[0], cpu,
            twos[0][2] / _QUERIES, checked,
        ),
    ]  # fmt: skip


def _timed(workers: list[_Worker], what: str) -> _Times:
    """Wall time of the slowest, CPU time of the busiest, bytes sent by one."""
    for worker in workers:
        worker.start(what)
    answers = [worker.answer() for worker in workers]
    return max(a[0] for a in answers), max(a[1] for a in answers), answers[0][2]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# ------------------------------------------------------------------ simulated shards


def _simulated(count: int, width: int, shards: int) -> list[DistributedRow]:
    """All-gather and tree: planned milliseconds per query at 50 microseconds and 1 GB/s."""
    memories, queries = patterns(0, count, width, None), cues(count, _QUERIES, width, None)
    run = simulate(memories, queries, Tsallis(2.0), _BETA, shards)
    whole = HopfieldNetwork(memories, Tsallis(2.0), _BETA).retrieve(queries, max_steps=1).support
    checked = whole is not None and all(
        torch.equal(found.indices, whole.indices) for found in (run.weights, run.tree_weights)
    )
    rows = []
    for how, sent, merged in (
        ("all-gather", run.all_gather_bytes, run.merge_seconds),
        ("tree", run.tree_bytes, run.tree_seconds),
    ):
        planned, local = run.planned_seconds(how), run.search_seconds + merged
        scale = 1e3 / _QUERIES
        rows.append(
            DistributedRow(
                f"{shards} shards of {count // shards}, {how}",
                scale * planned,
                scale * local,
                None,
                None,
                None,
                sent / _QUERIES,
                checked,
            )
        )
    return rows
