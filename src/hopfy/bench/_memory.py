"""The memory beside its network, the bare product and other exact searches, if installed.

Answers are checked before they are timed; all contenders of a case are timed in turns, in one run,
with one thread and with two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy.bench._retrieval import data, has_mnist
from hopfy.bench._timing import on_threads
from hopfy.memory import AssociativeMemory
from hopfy.network import HopfieldNetwork

__all__ = ["MemoryRow", "bench_memory"]

_SECONDS = 8.0
_FEWEST, _MOST = 3, 200
_TILE = 2048


class MemoryRow(NamedTuple):
    """One measurement: the fastest of several rounds, and its ratios to others of the same case.

    Ratios are None where the other is not installed or not part of the case.
    """

    name: str
    threads: int
    milliseconds: float
    to_product: float | None
    to_retrieve: float | None
    to_faiss: float | None
    to_usearch: float | None
    checked: bool


class _Case(NamedTuple):
    name: str
    make: Callable[[], tuple[Tensor, Tensor]]
    threads: tuple[int, ...] = (1, 2)


def bench_memory(progress: Callable[[str], None] = lambda _: None) -> list[MemoryRow]:
    """Recall, predict and retrieve at the sizes that people have."""
    rows: list[MemoryRow] = []
    for case in _cases():
        progress(case.name)
        rows += _measured(case)
    progress("automatic beta")
    rows += _automatic_beta()
    progress("readers beside a writer")
    return rows + _readers_and_writers()


def _cases() -> list[_Case]:
    kind = "mnist" if has_mnist() else "low-rank"
    return [
        _Case("200 x 64, 1 cue", lambda: _random(200, 64, 1)),
        _Case("200 x 64, 8 cues", lambda: _random(200, 64, 8)),
        _Case("20,000 x 64, 100 cues", lambda: _random(20_000, 64, 100)),
        _Case("100,000 x 128, 64 cues", lambda: _random(100_000, 128, 64, rank=20)),
        _Case("Gaussian 100,000 x 128, 64 cues", lambda: _random(100_000, 128, 64)),
        _Case(f"{kind} 60,000 x 784, 1,000 cues", lambda: data(kind)),
        _Case("1,000,000 x 128, 100 cues", lambda: _random(1_000_000, 128, 100, rank=20)),
    ]


def _random(count: int, size: int, cues: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    """Gaussian patterns, or patterns of low rank with some noise, and noisy copies of some."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(count, size, generator=generator)
    if rank is not None:
        factors = torch.randn(count, rank, generator=generator)
        patterns.mul_(0.1).add_(factors @ torch.randn(rank, size, generator=generator))
    return patterns, patterns[:cues] + 0.3 * torch.randn(cues, size, generator=generator)


def _measured(case: _Case) -> list[MemoryRow]:
    patterns, cues = case.make()
    memory = AssociativeMemory(beta=1.0).fit(patterns, torch.arange(len(patterns)))
    network = HopfieldNetwork(patterns, "sparsemax", 1.0)
    checked = _is_right(memory, network, patterns, cues)
    rows = []
    for threads in case.threads:
        with on_threads(threads):
            runs: dict[str, Callable[[], Any]] = {
                "product": lambda: cues @ patterns.mT,
                "update": lambda: network.update(cues),
                "retrieve": lambda: network.retrieve(cues),
                "recall": lambda: memory.recall(cues),
                "predict": lambda: memory.predict(cues),
                **_others(patterns, cues, threads),
            }
            times = _best(runs)
        rows += [
            _row(f"{case.name}: {key}", threads, spent, times, checked)
            for key, spent in times.items()
        ]
    return rows


def _row(
    name: str, threads: int, spent: float, times: dict[str, float], checked: bool
) -> MemoryRow:
    def to(other: str) -> float | None:
        return spent / times[other] if other in times else None

    return MemoryRow(
        name=name,
        threads=threads,
        milliseconds=1000 * spent,
        to_product=to("product"),
        to_retrieve=to("retrieve"),
        to_faiss=to("faiss flat L2"),
        to_usearch=to("usearch exact"),
        checked=checked,
    )


def _is_right(
    memory: AssociativeMemory, network: HopfieldNetwork, patterns: Tensor, cues: Tensor
) -> bool:
    """Whether recalls that are one pattern are the nearest one, and certified states stay."""
    some = cues[:50]
    recalled, found = memory.recall(some), network.retrieve(some)
    gaps = torch.stack([(patterns - cue).double().square().sum(1) for cue in some])
    first = recalled.certified & (recalled.steps == 1)
    nearest = bool((recalled.ids == gaps.argmin(1))[first].all())
    again = network.update(found.state)
    return nearest and torch.equal(again[found.certified], found.state[found.certified])


def _best(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The fastest time of each, in turns; the first rounds plan and compile."""
    for _ in range(2):
        for run in runs.values():
            run()
    times = dict.fromkeys(runs, float("inf"))
    begin, done = time.perf_counter(), 0
    while done < _FEWEST or (done < _MOST and time.perf_counter() - begin < _SECONDS):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            times[key] = min(times[key], time.perf_counter() - start)
        done += 1
    return times


def _others(patterns: Tensor, cues: Tensor, threads: int) -> dict[str, Callable[[], Any]]:
    """Exact searches of other libraries."""
    found: dict[str, Callable[[], Any]] = {}
    try:
        import faiss
    except ImportError:
        pass
    else:
        faiss.omp_set_num_threads(threads)
        flat = faiss.IndexFlatL2(patterns.shape[1])
        flat.add(patterns.numpy())
        found["faiss flat L2"] = lambda: flat.search(cues.numpy(), 1)
    try:
        from usearch.index import search
    except ImportError:
        return found
    found["usearch exact"] = lambda: search(
        patterns.numpy(), cues.numpy(), 1, "l2sq", exact=True, threads=threads
    )
    return found


def _automatic_beta() -> list[MemoryRow]:
    """Choosing beta once, beside the product of all pairs, of which two strips are timed."""
    patterns = data("mnist" if has_mnist() else "low-rank")[0]
    with on_threads(1):
        strips = _best_of(2, lambda: patterns[:_TILE] @ patterns.mT)
        product = strips * len(patterns) / _TILE
        memory = AssociativeMemory().fit(patterns)
        start = time.perf_counter()
        beta = memory.beta
        spent = time.perf_counter() - start
    lift = memory.network.memories[:64].double()
    products = lift @ memory.network.memories.double().mT
    own = products[torch.arange(64), torch.arange(64)].clone()
    products[torch.arange(64), torch.arange(64)] = -torch.inf
    smallest = float((own - products.amax(1)).clamp_min(0).max())
    checked = beta > 0 and 2 / beta <= smallest * (1 + 1e-6)
    times = {"product": product}
    name = "automatic beta, 60,000 x 784"
    return [
        _row(f"{name}: product of all pairs", 1, product, times, checked),
        _row(f"{name}: choose beta", 1, spent, times, checked),
    ]


def _best_of(rounds: int, run: Callable[[], Any]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _readers_and_writers(seconds: float = 2.0) -> list[MemoryRow]:
    """One recall, alone and beside a thread that adds and removes without pause."""
    patterns, cues = _random(20_000, 64, 1)
    memory = AssociativeMemory(beta=1.0).fit(patterns)
    alone = seconds / _recalls(memory, cues, seconds)
    stop, writes = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            memory.remove(memory.add(patterns[:2] + 1.0))
            writes[0] += 2

    writer = threading.Thread(target=write)
    writer.start()
    beside = seconds / _recalls(memory, cues, seconds)
    stop.set()
    writer.join()
    checked = len(memory) == len(patterns)
    name = f"20,000 x 64, recall of one cue beside {writes[0] / seconds:.0f} writes a second"
    return [
        MemoryRow("20,000 x 64, recall of one cue", 1, 1000 * alone, None, None, None, None, True),
        MemoryRow(name, 1, 1000 * beside, None, None, None, None, checked),
    ]


def _recalls(memory: AssociativeMemory, cues: Tensor, seconds: float) -> int:
    memory.recall(cues)
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        memory.recall(cues)
        count += 1
    return max(1, count)
