"""Compile every kernel ahead of its first use, by calling what users call.

The calls come in groups; a group has the kernels of its own folders to compile, so that groups can
run in processes side by side. ``python -m hopfy._warm_up NAME`` runs one group.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy import structures
from hopfy._kernels.conv_pool import conv_relu_pool

__all__ = ["GROUPS", "Group", "run_group", "warm_up"]

_LIMIT = 900.0  # seconds for one group; the slowest takes a minute on a free core


class Group(NamedTuple):
    """Operations whose kernels lie in the folders ``kernels`` of ``hopfy._kernels``."""

    kernels: tuple[str, ...]
    run: Callable[[], None]


def warm_up(progress: Callable[[str], None] = lambda _: None, processes: int = 2) -> int:
    """Run every group in a process of its own, ``processes`` at a time; return how many there are.

    The machine code stays on disk (see `hopfy._runtime.kernel_cache`), so that later processes start
    at once. ``progress`` is told what is left. Interrupted, it ends its processes; what they have
    compiled until then stays.
    """
    waiting, running = list(GROUPS), dict[str, subprocess.Popen[str]]()
    try:
        progress(_left(waiting))
        while waiting or running:
            while waiting and len(running) < max(1, processes):
                name = waiting.pop(0)
                running[name] = _start(name)
            ended = _next_to_end(running)
            _check(ended, running.pop(ended))
            progress(_left([*running, *waiting]))
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    return len(GROUPS)


def _left(names: list[str]) -> str:
    return f"{len(names)} groups left{': ' if names else ''}{', '.join(names)}"


def _start(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hopfy._warm_up", name],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HOPFY_QUIET": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _next_to_end(running: dict[str, subprocess.Popen[str]]) -> str:
    """Wait until a process has ended; the limit begins anew with each that ends."""
    begun = time.monotonic()
    while time.monotonic() - begun < _LIMIT:
        for name, process in running.items():
            if process.poll() is not None:
                return name
        time.sleep(0.02)
    raise RuntimeError(
        f"expected compiling {', '.join(running)} to take less than {_LIMIT:.0f} seconds; run it again "
        "while the machine has less to do."
    )


def _check(name: str, process: subprocess.Popen[str]) -> None:
    said = process.communicate()[1]
    if process.returncode:
        last = said.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"compiling {name} failed: {last[0]}")


# --- the groups -----------------------------------------------------------------------------------


def _entmax() -> None:
    for alpha in (1.0, 2.0, 1.5, 1.3, 3.0, math.inf):
        _both_ways(partial(F.entmax, alpha=alpha))
    for alpha in (2.0, 5.0):
        _both_ways(partial(F.normmax, alpha=alpha))


def _subsets() -> None:
    _both_ways(partial(F.ksubsets, k=2))
    _both_ways(partial(F.at_most_k, k=2))
    _both_ways(partial(F.capped_sparsemax, upper=0.4))
    _both_ways(partial(F.entropic_ksubsets, k=2))
    _both_ways(partial(F.fusedmax, strength=0.5))


def _sequential() -> None:
    for transition in (0.3, -0.3):
        edge = torch.tensor(transition, dtype=torch.float64, requires_grad=True)
        _both_ways(partial(F.sequential_ksubsets, k=3, transition=edge))
    scores = torch.randn(4, 12, device="cpu")
    map = partial(F.sequential_ksubsets, k=3, transition=0.3)
    torch.func.jvp(map, (scores,), (scores,))
    map(1e9 * scores, transition=-1e9)  # numbers this large are settled before the others
    omega = hopfy.SparseMAP(structures.SequentialKSubsets(3, 0.3))
    omega.conjugate(scores)  # its value needs the pairs


def _both_ways(map: Callable[[Tensor], Tensor]) -> None:
    """Forward and backward; short and long rows, and both dtypes, have kernels of their own."""
    for dtype in (torch.float32, torch.float64):
        for size in (12, 200):
            scores = torch.randn(4, size, dtype=dtype, device="cpu", requires_grad=True)
            torch.autograd.backward(map(scores).square().sum())


def _structured() -> None:
    for structure, shape in _structures():
        scores = torch.randn(shape, device="cpu", requires_grad=True)
        torch.autograd.backward(F.sparsemap(scores, structure).square().sum())
        structure.argmax(scores.detach())


def _structures() -> Iterator[tuple[structures.Structure, tuple[int, ...]]]:
    yield structures.Chain(torch.zeros(3, 3, device="cpu")), (2, 5, 3)
    yield structures.SequentialKSubsets(2, 0.3), (2, 5)
    yield structures.Matching(), (2, 4, 4)
    yield structures.Tree(), (2, 4, 4)
    yield structures.Tree(projective=True), (2, 4, 4)


def _attention() -> None:
    steep, winner = hopfy.Tsallis(5.0), hopfy.Tsallis(math.inf)
    for omega in ("sparsemax", "1.5-entmax", hopfy.Tsallis(2.5), hopfy.Norm(2.0), "3-subsets"):
        for size in ((160, 160), (160, 700), (1, 700)):  # short, long, one query
            _attend(omega, *size)
    _attend("sparsemax", 160, 700, scale=1e-3)  # every key has weight
    holes = torch.rand(160, 700, device="cpu") < 0.5
    for omega in ("sparsemax", steep, winner):
        _attend(omega, 160, 700, is_causal=True)
        _attend(omega, 160, 700, attn_mask=holes)
        _attend(omega, 1, 700, attn_mask=holes[:1])
    keys = torch.randn(1, 2, 500, 16, device="cpu")
    cache = hopfy.nn.SparseCache()
    cache.append(keys, keys)
    for omega in ("sparsemax", "1.5-entmax"):
        cache.attend(keys[:, :, :1], omega)


def _attend(omega: Any, queries: int, keys: int, **options: Any) -> None:
    query = torch.randn(1, 2, queries, 16, device="cpu", requires_grad=True)
    key = torch.randn(1, 2, keys, 16, device="cpu", requires_grad=True)
    torch.autograd.backward(F.attention(query, key, key, omega=omega, **options).sum())


def _memory() -> None:
    memories = torch.nn.functional.normalize(torch.randn(5000, 16, device="cpu"), dim=-1)
    for rows in (memories, memories[:200]):  # few memories go a shorter way
        for omega in ("sparsemax", "1.5-entmax", hopfy.SparseMAP(structures.KSubsets(2))):
            hopfy.HopfieldNetwork(rows, omega, 20.0).retrieve(rows[:4])
        memory = hopfy.AssociativeMemory().fit(rows)
        memory.recall(rows[:2])
        memory.recall(rows[:2], mask=torch.arange(16, device="cpu") < 8)
    many = memories[:, :8].repeat(14, 1)
    for beta in (7.0, 5.0, 4.0, 1e-3):  # some of the memories may have weight, or nearly all
        hopfy.HopfieldNetwork(many, "sparsemax", beta).update(many[:4])


def _images() -> None:
    images = torch.randn(2, 1, 28, 28, device="cpu", requires_grad=True)
    weight, bias = torch.randn(20, 1, 5, 5, device="cpu"), torch.randn(20, device="cpu")
    torch.autograd.backward(conv_relu_pool(images, weight, bias).square().sum())


# The slowest first, so that the others run beside them.
GROUPS = {
    "sequential k-subsets": Group(("sequential",), _sequential),
    "structures": Group(("active_set", "chain", "oracles"), _structured),
    "attention": Group(("attention",), _attention),
    "networks and memories": Group(("select",), _memory),
    "entmax and normmax": Group(("entmax", "normmax", "threshold"), _entmax),
    "subsets and segments": Group(
        ("at_most_k", "capped", "entropic_ksubsets", "ksubsets", "total_variation"), _subsets
    ),
    "images": Group(("conv_pool",), _images),
}


def run_group(name: str) -> None:
    """Call the operations of a group, with the same numbers each time."""
    torch.manual_seed(0)
    GROUPS[name].run()


if __name__ == "__main__":
    run_group(sys.argv[1])
