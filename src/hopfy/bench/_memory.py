"""The memory beside its network, the bare product and other exact searches, if installed.

Answers are checked before they are timed; all contenders of a case are timed in turns, in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy.bench._retrieval import data
from hopfy.memory import AssociativeMemory
from hopfy.network import HopfieldNetwork

__all__ = ["MemoryRow", "bench_memory"]

_ROUNDS = 5


class MemoryRow(NamedTuple):
    """One measurement: the fastest of several rounds, and its ratio to the bare product."""

    name: str
    milliseconds: float
    to_product: float
    checked: bool


def bench_memory(progress: Callable[[str], None] = lambda _: None) -> list[MemoryRow]:
    """Recall, predict and retrieve at the sizes that people have."""
    rows: list[MemoryRow] = []
    for name, make in _cases().items():
        progress(name)
        patterns, cues = make()
        rows += _case(name, patterns, cues)
    return rows


def _cases() -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    return {
        "200 x 64, 1 cue": lambda: _gaussian(200, 64, 1),
        "20,000 x 64, 100 cues": lambda: _gaussian(20_000, 64, 100),
        "100,000 x 128, 64 cues": lambda: _gaussian(100_000, 128, 64, rank=20),
        "Gaussian 100,000 x 128, 64 cues": lambda: _gaussian(100_000, 128, 64),
        "low-rank 60,000 x 784, 1,000 cues": lambda: data("low-rank"),
    }


def _gaussian(count: int, size: int, cues: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(count, size, generator=generator)
    if rank is not None:
        factors = torch.randn(count, rank, generator=generator)
        patterns.mul_(0.1).add_(factors @ torch.randn(rank, size, generator=generator))
    return patterns, patterns[:cues] + 0.3 * torch.randn(cues, size, generator=generator)


def _case(name: str, patterns: Tensor, cues: Tensor) -> list[MemoryRow]:
    memory = AssociativeMemory(beta=1.0).fit(patterns, torch.arange(len(patterns)))
    network = HopfieldNetwork(patterns, "sparsemax", 1.0)
    runs: dict[str, Callable[[], Any]] = {
        "product": lambda: cues @ patterns.mT,
        "update": lambda: network.update(cues),
        "retrieve": lambda: network.retrieve(cues),
        "recall": lambda: memory.recall(cues),
        "predict": lambda: memory.predict(cues),
        **_others(patterns, cues),
    }
    expected = torch.cdist(cues.double(), patterns.double()).argmin(1)
    checked = bool((memory.recall(cues).ids == expected).all())
    for _ in range(2):  # plans come with the queries
        for run in runs.values():
            run()
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            times[key] = min(times[key], time.perf_counter() - start)
    product = times["product"]
    return [
        MemoryRow(f"{name}: {key}", 1000 * spent, spent / product, checked)
        for key, spent in times.items()
    ]


def _others(patterns: Tensor, cues: Tensor) -> dict[str, Callable[[], Any]]:
    """Exact searches of other libraries."""
    found: dict[str, Callable[[], Any]] = {}
    try:
        import faiss
    except ImportError:
        pass
    else:
        faiss.omp_set_num_threads(torch.get_num_threads())
        flat = faiss.IndexFlatL2(patterns.shape[1])
        flat.add(patterns.numpy())
        found["faiss.IndexFlatL2"] = lambda: flat.search(cues.numpy(), 1)
    try:
        from usearch.index import search
    except ImportError:
        return found
    threads = torch.get_num_threads()
    found["usearch exact"] = lambda: search(
        patterns.numpy(), cues.numpy(), 1, "l2sq", exact=True, threads=threads
    )
    return found
