"""Benchmarks: every result is checked before it is timed, every speed is a ratio from one run.

A subject is a function that takes a ``progress`` callback and returns rows: tuples with names, or
dataclasses, one measurement each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopfy.bench._attention import ATTENTION_PARTS, bench_attention
from hopfy.bench._busy import bench_busy
from hopfy.bench._classic import bench_classic
from hopfy.bench._distributed import bench_distributed
from hopfy.bench._first_call import bench_first_call
from hopfy.bench._gpu import bench_gpu
from hopfy.bench._gpu import table_of as to_paste
from hopfy.bench._layers import rows as _layers
from hopfy.bench._maps import MAP_PARTS, bench_maps
from hopfy.bench._memory import bench_memory
from hopfy.bench._mil import bench_mil
from hopfy.bench._rationale import bench_rationale
from hopfy.bench._retrieval import bench_retrieval
from hopfy.bench._sequential import bench_sequential
from hopfy.bench._structures import bench_structures
from hopfy.bench._tables import table_lines

__all__ = ["NEED_A_GPU", "PARTS", "SUBJECTS", "table_lines", "to_paste"]

SUBJECTS: dict[str, Callable[[Callable[[str], None]], list[Any]]] = {
    "maps": bench_maps,
    "sequential": bench_sequential,
    "structures": bench_structures,
    "attention": bench_attention,
    "layers": lambda _: _layers(),
    "retrieval": bench_retrieval,
    "classic": bench_classic,
    "memory": bench_memory,
    "distributed": bench_distributed,
    "busy": bench_busy,
    "first-call": bench_first_call,
    "rationale": bench_rationale,
    "mil": bench_mil,
    "gpu": bench_gpu,
}
# Subjects that are not part of "all".
NEED_A_GPU = ("gpu",)
# Subjects that can run in parts, each named "subject/part".
PARTS: dict[str, Callable[[], list[Any]]] = {
    f"{subject}/{name}": part
    for subject, parts in (("attention", ATTENTION_PARTS), ("maps", MAP_PARTS))
    for name, part in parts.items()
}
