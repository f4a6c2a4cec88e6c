"""What each process sees when one of them fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import torch

import hopfy
from hopfy.distributed import ShardedHopfieldNetwork
from hopfy.structures import Matching
from judges.sharded import OMEGAS, OwnSparsemax, memories_of, part, queries_of, shares


def _network(rank: int, size: int, timeout: float = 60.0) -> ShardedHopfieldNetwork:
    mine = part(memories_of(), rank, shares(size, "even"))
    return ShardedHopfieldNetwork(mine, "sparsemax", 0.7, timeout=timeout)


def _seen(call) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def bad_inputs(rank: int, size: int) -> dict[str, tuple[str, str]]:
    """The errors of every process, by what the last process does wrong; all can go on afterward."""
    net, guilty = _network(rank, size), rank == size - 1
    whole = memories_of()
    good = queries_of(whole)
    mine = part(whole, rank, shares(size, "even"))

    def made(rows=mine, omega="sparsemax", beta=1.0):
        return lambda: ShardedHopfieldNetwork(rows, omega, beta, timeout=60)

    spoiled = mine.clone()
    spoiled[0, 0] = torch.nan
    seen = {
        "queries of another shape": _seen(lambda: net.update(good[:, :5] if guilty else good)),
        "queries of another dtype": _seen(lambda: net.update(good.float() if guilty else good)),
        "other queries": _seen(lambda: net.retrieve(good + 1 if guilty else good)),
        "fewer queries": _seen(lambda: net.retrieve(good[:3] if guilty else good)),
        "NaN in the queries of one": _seen(
            lambda: net.retrieve(good * torch.nan if guilty else good)
        ),
        "other options": _seen(lambda: net.retrieve(good, max_steps=7 if guilty else 8)),
        "bad options": _seen(lambda: net.retrieve(good, max_steps=0 if guilty else 8)),
        "another method": _seen(lambda: net.energy(good) if guilty else net.update(good)),
        "NaN in a shard": _seen(made(spoiled if guilty else mine)),
        "another omega": _seen(made(omega=OMEGAS["1.5-entmax"] if guilty else "sparsemax")),
        "another weight of an own omega": _seen(made(omega=OwnSparsemax(2.0 if guilty else 1.0))),
        "an omega over a grid": _seen(
            made(omega=hopfy.SparseMAP(Matching()) if guilty else "sparsemax")
        ),
        "another beta": _seen(made(beta=2.0 if guilty else 1.0)),
        "another length": _seen(made(mine[:, :4] if guilty else mine)),
        "gradients on one": _seen(made(mine.clone().requires_grad_() if guilty else mine)),
        "memories elsewhere": _seen(made(mine.to("meta") if guilty else mine)),
        "another state": _seen(
            lambda: ShardedHopfieldNetwork(mine, state="ball" if guilty else "tanh", timeout=60)
        ),
        "no memories": _seen(made(mine[:0])),
    }
    judge = hopfy.HopfieldNetwork(whole, "sparsemax", 0.7)
    torch.testing.assert_close(net.update(good), judge.update(good))  # it still works
    return seen


class _FailsLater(hopfy.Tsallis):
    """A map that fails, on guilty processes, in the third small problem."""

    def __init__(self, guilty: bool, fail: Callable[[], None]) -> None:
        super().__init__(2.0)
        object.__setattr__(self, "_left", 3 if guilty else 1 << 30)
        object.__setattr__(self, "_fail", fail)

    @property
    def closed_form(self):
        return None  # so that searches call the map itself

    def __call__(self, scores, mask=None, *, dim=-1):
        object.__setattr__(self, "_left", self._left - 1)
        if self._left == 0:
            self._fail()
        return super().__call__(scores, mask, dim=dim)


def _run_out_of_memory() -> None:
    raise MemoryError("no memory left for the scores")


def _end_at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory_in_a_step(rank: int, size: int) -> tuple[str, str]:
    mine = part(memories_of(), rank, shares(size, "even"))
    net = ShardedHopfieldNetwork(mine, _FailsLater(rank == 1, _run_out_of_memory), 0.7, timeout=20)
    return _seen(lambda: net.retrieve(queries_of(memories_of())))


def not_finite_queries(rank: int, size: int) -> None:
    """The same NaN on all processes is an answer, row by row, as in one process."""
    net, whole = _network(rank, size), memories_of()
    queries = queries_of(whole)
    queries[1, 0], queries[4, 2] = torch.nan, torch.inf
    ours, judge = (
        net.retrieve(queries),
        hopfy.HopfieldNetwork(whole, "sparsemax", 0.7).retrieve(queries),
    )
    torch.testing.assert_close(ours.state, judge.state, equal_nan=True)
    assert torch.equal(ours.pattern, judge.pattern)
    assert ours.status is judge.status
    assert net.energy(queries).isnan().nonzero().flatten().tolist() == [1, 4]


def traffic(rank: int, size: int, count: int, candidates: int) -> tuple[int, int, int]:
    """Bytes of one retrieval from ``count`` memories, of which few are within reach."""
    generator = torch.Generator().manual_seed(rank)
    mine = torch.nn.functional.normalize(torch.randn(count, 32, generator=generator))
    mine[:candidates] = torch.eye(32)[0]  # equal rows, all of them in the support
    net = ShardedHopfieldNetwork(mine, "sparsemax", 40.0, timeout=60)
    before = net.traffic
    net.update(torch.eye(32)[:1])
    after = net.traffic - before
    return after.sent, after.useful, after.exchanges


def killed_during_a_retrieval(rank: int, size: int, timeout: float) -> tuple[str, str, float]:
    """The last process kills itself at its third step; what the others see, and when."""
    mine = part(memories_of(), rank, shares(size, "even"))
    omega = _FailsLater(rank == size - 1, _end_at_once)
    net = ShardedHopfieldNetwork(mine, omega, 0.7, timeout=timeout)
    begun = time.monotonic()
    seen = _seen(lambda: net.retrieve(queries_of(memories_of()), max_steps=50, tol=0.0))
    again = _seen(lambda: net.update(queries_of(memories_of())))
    return (*seen, again[0], time.monotonic() - begun)
