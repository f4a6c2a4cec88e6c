"""How long the first call of an operation takes where nothing is compiled yet."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["FirstCallRow", "bench_first_call"]

_SCORES = "scores = torch.randn(8, {size}, requires_grad=True)"
_PATTERNS = "patterns = torch.randn(500, 32); memory = hopfy.AssociativeMemory().fit(patterns)"
_README = """
scores = torch.tensor([[1.0, 0.5, -1.0, -2.0]])
F.entmax(scores, alpha=1.5), F.ksubsets(scores, k=2)
patterns = torch.nn.functional.normalize(torch.randn(1000, 64), dim=1)
net = hopfy.HopfieldNetwork(patterns, omega="sparsemax", beta=10.0)
found = net.retrieve(patterns[:5] + 0.05 * torch.randn(5, 64))
layer = hopfy.nn.HopfieldPooling(64, omega="3-subsets")
loss = hopfy.FenchelYoungLoss("1.5-entmax")
"""
# name: (set-up, call)
_MAPS = {
    "sparsemax": "F.sparsemax(scores)",
    "1.5-entmax": "F.entmax(scores, 1.5)",
    "1.3-entmax": "F.entmax(scores, 1.3)",
    "3-entmax": "F.entmax(scores, 3.0)",
    "2-normmax": "F.normmax(scores, 2.0)",
    "5-normmax": "F.normmax(scores, 5.0)",
    "k-subsets": "F.ksubsets(scores, 3)",
    "sequential k-subsets": "F.sequential_ksubsets(scores, 3, 0.3)",
}
_LAYER = (
    "layer = hopfy.nn.HopfieldAttention(64, 4, batch_first=True); x = torch.randn(2, 256, 64)",
    "layer(x, x, x, need_weights=False)[0].sum().backward()",
)
_OTHERS = {
    "attention layer, forward and backward": _LAYER,
    "memory.recall of a whole cue": (_PATTERNS, "memory.recall(patterns[:4])"),
    "memory.recall of half a cue": (
        _PATTERNS,
        "memory.recall(patterns[:4], mask=torch.arange(32) < 16)",
    ),
    "network.retrieve": (
        "net = hopfy.HopfieldNetwork(torch.randn(2000, 64), 'sparsemax', 2.0)",
        "net.retrieve(torch.randn(8, 64))",
    ),
    "the example of the README": ("", _README),
}
_SCRIPT = """
import json, time
import torch, hopfy
from hopfy import functional as F
{setup}
began, wall = time.process_time(), time.perf_counter()
{call}
print(json.dumps([time.process_time() - began, time.perf_counter() - wall]))
"""


class FirstCallRow(NamedTuple):
    """Medians over new processes: seconds of processor time and of the clock, imports excluded."""

    operation: str
    cpu_s: float
    wall_s: float


def bench_first_call(
    progress: Callable[[str], None] = lambda _: None, repeats: int = 3
) -> list[FirstCallRow]:
    """Call each operation once in a new process with one thread and an empty folder of kernels.

    Python's own bytecode is there, as after an installation: a first process that is not counted
    writes it, to a folder for this bench.
    """
    rows = []
    with tempfile.TemporaryDirectory() as bytecode:
        progress("bytecode")
        _measure("", _README, bytecode)
        for name, (setup, call) in _calls().items():
            progress(name)
            times = [_measure(setup, call, bytecode) for _ in range(repeats)]
            cpu, wall = (statistics.median(each) for each in zip(*times, strict=True))
            rows.append(FirstCallRow(name, cpu, wall))
    return rows


def _calls() -> dict[str, tuple[str, str]]:
    calls = {}
    for name, call in _MAPS.items():
        for size in (20, 300):  # short and long rows have kernels of their own
            where = f"{name}, rows of {size}"
            calls[where] = _SCORES.format(size=size), call
            calls[f"{where}, forward and backward"] = (
                _SCORES.format(size=size),
                f"{call}.square().sum().backward()",
            )
    return calls | _OTHERS


def _measure(setup: str, call: str, bytecode: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as empty:
        own = {
            "NUMBA_CACHE_DIR": empty,
            "OMP_NUM_THREADS": "1",
            "HOPFY_QUIET": "1",
            "PYTHONPYCACHEPREFIX": bytecode,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        printed = subprocess.run(
            [sys.executable, "-c", _SCRIPT.format(setup=setup, call=call)],
            env=os.environ | own,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    cpu, wall = json.loads(printed)
    return cpu, wall
