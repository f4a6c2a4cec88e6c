"""Retrieval at scale against the bare product ``queries @ memories.T`` and faiss, if installed.

Every answer is checked before it is timed; all contenders of a row are timed in turns, in one run.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork
from hopfy.omega import Omega, Tsallis, omega_from
from hopfy.search import ExactIndex

__all__ = [
    "Row",
    "bench_retrieval",
    "curve_over_directions",
    "curve_over_memories",
    "data",
    "extra_memory",
    "floors",
    "has_mnist",
]

_ROUNDS = 5


class Row(NamedTuple):
    """One measurement; ratios are of the fastest times, ``to_faiss`` None without faiss."""

    name: str
    milliseconds: float
    to_product: float
    to_faiss: float | None
    checked: bool


def bench_retrieval(progress: Callable[[str], None] = lambda _: None) -> list[Row]:
    """The floors and curves on MNIST where it is at hand, else on low-rank patterns of its size."""
    kind = "mnist" if has_mnist() else "low-rank"
    memories, queries = data(kind)
    progress(f"updates and searches, {kind}")
    rows = [row._replace(name=f"{kind}: {row.name}") for row in floors(memories, queries)]
    progress("principal directions")
    rows += curve_over_directions(memories, queries)[1:]
    for each in (kind, "gaussian"):
        progress(f"numbers of memories, {each}")
        rows += curve_over_memories(each)
    return rows


def has_mnist() -> bool:
    """Whether MNIST is in $HOPFY_DATA (or ./data)."""
    return (_mnist_folder() / "train-images-idx3-ubyte.gz").exists()


def _mnist_folder() -> Path:
    return Path(os.environ.get("HOPFY_DATA") or "data") / "mnist"


def data(kind: str, memories: int = 60_000, queries: int = 1_000) -> tuple[Tensor, Tensor]:
    """Memories and queries: "mnist" (from $HOPFY_DATA), "gaussian" or "low-rank", float32."""
    if kind == "mnist":
        folder = _mnist_folder()
        train = _images(folder / "train-images-idx3-ubyte.gz")
        return train[:memories], _images(folder / "t10k-images-idx3-ubyte.gz")[:queries]
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(memories, 784, generator=generator)
    if kind == "low-rank":
        factors = torch.randn(memories, 20, generator=generator)
        patterns.mul_(0.1).add_(factors @ torch.randn(20, 784, generator=generator))
    elif kind != "gaussian":
        raise ValueError(f'expected the kind "mnist", "gaussian" or "low-rank", got {kind!r}.')
    noise = torch.randn(queries, 784, generator=generator)
    return patterns, patterns[:queries] + 0.3 * noise


def _images(path: Path) -> Tensor:
    with gzip.open(path) as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16)
    return torch.from_numpy(pixels.reshape(-1, 784).astype(np.float32) / 255 * 2 - 1)


def floors(memories: Tensor, queries: Tensor, beta: float = 1.0) -> list[Row]:
    """Updates, searches and a retrieval, streamed and pruned, with the product and faiss beside."""
    streamed, pruned = ExactIndex(memories, directions=0), ExactIndex(memories)
    contenders: dict[str, Callable[[], Any]] = {"product": lambda: queries @ memories.mT}
    checked = {"product": True}
    for kind, index in (("streamed", streamed), ("pruned", pruned)):
        for name in ("sparsemax", "1.5-entmax", "5-normmax", "8-subsets"):
            omega = omega_from(name)
            label = f"{name} update, {kind}"
            contenders[label] = _bind(index.update, queries, omega, beta)
            checked[label] = check_update(index, queries[:50], omega, beta)
        for k in (1, 10):
            label = f"top {k}, {kind}"
            contenders[label] = _bind(index.top, queries, k)
            checked[label] = check_top(index, queries[:50], k)
    for name in ("sparsemax", "1.5-entmax", "8-subsets"):
        label = f"{name} retrieve, with certificates"
        network = HopfieldNetwork(memories, name, beta)
        contenders[label] = _bind(network.retrieve, queries)
        checked[label] = check_retrieval(network, queries)
    contenders["softmax update, streamed"] = _bind(
        streamed.update, queries, omega_from("softmax"), beta
    )
    checked["softmax update, streamed"] = _softmax_is_right(streamed, queries[:50], beta)
    return _rows(contenders | _faiss(memories, queries), checked)


def curve_over_directions(memories: Tensor, queries: Tensor, beta: float = 1.0) -> list[Row]:
    """A sparsemax update for several numbers of principal directions (0: the plain product)."""
    contenders: dict[str, Callable[[], Any]] = {"product": lambda: queries @ memories.mT}
    checked = {"product": True}
    for directions in (0, 8, 16, 32, 64, 128, None):
        index = ExactIndex(memories, directions)
        chosen = f"chosen: {index.directions}" if directions is None else str(directions)
        label = f"sparsemax update, directions {chosen}"
        contenders[label] = _bind(index.update, queries, Tsallis(2.0), beta)
        checked[label] = check_update(index, queries[:20], Tsallis(2.0), beta)
    return _rows(contenders, checked)


def curve_over_memories(
    kind: str, counts: tuple[int, ...] = (7_500, 15_000, 30_000, 60_000)
) -> list[Row]:
    """A sparsemax update as the number of memories grows, each against its own product."""
    memories, queries = data(kind, max(counts))
    rows = []
    for count in counts:
        some = memories[:count]
        index = ExactIndex(some)
        label = f"{kind}, {count} memories, directions {index.directions}"
        contenders: dict[str, Callable[[], Any]] = {
            "product": _bind(torch.matmul, queries, some.mT),
            label: _bind(index.update, queries, Tsallis(2.0), 1.0),
        }
        checked = {"product": True, label: check_update(index, queries[:20], Tsallis(2.0), 1.0)}
        rows += _rows(contenders, checked)[1:]
    return rows


def extra_memory(memories: int, queries: int = 4_096, size: int = 128) -> tuple[float, float]:
    """Megabytes beyond the data, and seconds, of one sparsemax update in a fresh process."""
    code = _MEMORY_SCRIPT.format(memories=memories, queries=queries, size=size)
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    return float(answer[0]), float(answer[1])


_MEMORY_SCRIPT = """
import resource, time, torch, hopfy
from hopfy.search import ExactIndex
small = torch.randn(5000, {size})
ExactIndex(small).update(small[:64], hopfy.Tsallis(2.0))
memories, queries = torch.empty({memories}, {size}).normal_(), torch.randn({queries}, {size})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
ExactIndex(memories).update(queries, hopfy.Tsallis(2.0))
seconds = time.perf_counter() - start
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, seconds)
"""


def check_update(index: ExactIndex, queries: Tensor, omega: Omega, beta: float) -> bool:
    """Whether supports and weights are those of the whole score matrix in float64."""
    weights = index.update(queries, omega, beta).weights
    expected = omega(beta * queries.double() @ index.memories.double().mT)
    if weights is None:
        return False
    found = weights.dense()
    same = torch.equal(found > 0, expected > 0)
    return same and torch.allclose(found, expected, rtol=1e-8, atol=1e-9)


def check_retrieval(network: HopfieldNetwork, queries: Tensor, rows: int = 50) -> bool:
    """Whether certified states are fixed points of the whole score matrix in float64.

    All queries are retrieved, so that the network is timed with its index.
    """
    found = network.retrieve(queries)
    states, certified = found.state[:rows].double(), found.certified[:rows]
    memories = network.memories.double()
    again = network.omega(network.beta * states @ memories.mT) @ memories
    same = torch.allclose(again[certified], states[certified], rtol=1e-6, atol=1e-6)
    return bool(certified.any()) and same


def check_top(index: ExactIndex, queries: Tensor, k: int) -> bool:
    """Whether the k best are those of the whole score matrix in float64."""
    expected = (queries.double() @ index.memories.double().mT).topk(k, dim=1)
    top = index.top(queries, k)
    return torch.equal(top.indices, expected.indices) and torch.allclose(
        top.scores, expected.values, rtol=1e-12
    )


def _softmax_is_right(index: ExactIndex, queries: Tensor, beta: float) -> bool:
    memories = index.memories.double()
    expected = torch.softmax(beta * queries.double() @ memories.mT, 1) @ memories
    states = index.update(queries, omega_from("softmax"), beta).states
    return torch.allclose(states.double(), expected, atol=1e-2)


def _faiss(memories: Tensor, queries: Tensor) -> dict[str, Callable[[], Any]]:
    try:
        import faiss
    except ImportError:
        return {}
    faiss.omp_set_num_threads(torch.get_num_threads())
    flat = faiss.IndexFlatIP(memories.shape[1])
    flat.add(memories.numpy())
    return {"faiss.IndexFlatIP top 1": _bind(flat.search, queries.numpy(), 1)}


def _bind(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _rows(contenders: dict[str, Callable[[], Any]], checked: dict[str, bool]) -> list[Row]:
    times = dict.fromkeys(contenders, float("inf"))
    for _ in range(_ROUNDS):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    product, faiss = times["product"], times.get("faiss.IndexFlatIP top 1")
    return [
        Row(
            name,
            1000 * seconds,
            seconds / product,
            None if faiss is None else seconds / faiss,
            checked.get(name, True),
        )
        for name, seconds in times.items()
    ]
