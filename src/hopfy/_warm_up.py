"""Compile every kernel ahead of its first use, by calling what users call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy import structures

__all__ = ["warm_up"]


def warm_up(progress: Callable[[str], None] = lambda _: None) -> int:
    """Call every operation once, forward and backward; return how many there were.

    The machine code stays on disk (see `hopfy._runtime.kernel_cache`), so that later processes start
    at once. ``progress`` is told what is compiled next.
    """
    count = 0
    for name, call in _calls():
        progress(name)
        call()
        count += 1
    return count


def _calls() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, map in _maps().items():
        for dtype in (torch.float32, torch.float64):
            for size in (12, 200):  # short and long rows have kernels of their own
                yield f"{name}, rows of {size} {dtype}", partial(_both_ways, map, size, dtype)
    for name, structure, shape in _structures():
        yield name, partial(_sparsemap, structure, shape)
    yield "attention", _attention
    yield "networks", _network
    yield "associative memory", _memory


def _maps() -> dict[str, Callable[[Tensor], Tensor]]:
    maps: dict[str, Callable[[Tensor], Tensor]] = {"sparsemax": F.sparsemax}
    for alpha in (1.0, 1.5, 1.3, 3.0, math.inf):
        maps[f"{alpha:g}-entmax"] = partial(F.entmax, alpha=alpha)
    for alpha in (2.0, 5.0):
        maps[f"{alpha:g}-normmax"] = partial(F.normmax, alpha=alpha)
    maps["k-subsets"] = partial(F.ksubsets, k=2)
    maps["entropic k-subsets"] = partial(F.entropic_ksubsets, k=2)
    maps["capped sparsemax"] = partial(F.capped_sparsemax, upper=0.5)
    maps["at most k"] = partial(F.sparsemap, structure=structures.AtMostK(2))
    maps["fusedmax"] = partial(F.fusedmax, strength=0.5)
    for transition in (0.3, -0.3):
        edge = torch.tensor(transition, dtype=torch.float64, requires_grad=True)
        maps[f"sequential k-subsets, transition {transition:g}"] = partial(
            F.sequential_ksubsets, k=3, transition=edge
        )
    return maps


def _both_ways(map: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype) -> None:
    scores = torch.randn(4, size, dtype=dtype, device="cpu", requires_grad=True)
    torch.autograd.backward(map(scores).square().sum())


def _structures() -> Iterator[tuple[str, structures.Structure, tuple[int, ...]]]:
    yield "chains", structures.Chain(torch.zeros(3, 3, device="cpu")), (2, 5, 3)
    yield "matchings", structures.Matching(), (2, 4, 4)
    yield "trees", structures.Tree(), (2, 4, 4)


def _sparsemap(structure: structures.Structure, shape: tuple[int, ...]) -> None:
    scores = torch.randn(shape, device="cpu", requires_grad=True)
    torch.autograd.backward(F.sparsemap(scores, structure).square().sum())


def _attention() -> None:
    for omega in ("sparsemax", "1.5-entmax", hopfy.Norm(2.0)):
        layer = hopfy.nn.HopfieldAttention(32, 2, omega=omega, batch_first=True)
        states = torch.randn(2, 160, 32, device="cpu", requires_grad=True)
        torch.autograd.backward(layer(states, states, states, need_weights=False)[0].sum())


def _network() -> None:
    memories = torch.nn.functional.normalize(torch.randn(5000, 16, device="cpu"), dim=-1)
    for omega in ("sparsemax", "1.5-entmax", hopfy.SparseMAP(structures.KSubsets(2))):
        hopfy.HopfieldNetwork(memories, omega, 20.0).retrieve(memories[:4])


def _memory() -> None:
    memory = hopfy.AssociativeMemory()
    patterns = torch.randn(5000, 16, device="cpu")
    memory.add(patterns)
    memory.recall(patterns[:2])
