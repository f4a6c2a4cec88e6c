"""Hopfield networks whose memories are spread over processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor

from hopfy._checks import BETA, as_scores, as_states, check_parameter
from hopfy.distributed._collectives import for_shards, gathered, own_rows
from hopfy.distributed._energy import energy
from hopfy.distributed._engine import Engine
from hopfy.distributed._files import read_shard
from hopfy.distributed._group import Group, Traffic, collective
from hopfy.distributed._merge import Cues
from hopfy.distributed._proof import prove
from hopfy.distributed._shard import Layout, Shard
from hopfy.network import (
    Outcome,
    Retrieval,
    Rules,
    Step,
    attach_implicit_gradient,
    iterate,
    kept_in_place,
)
from hopfy.omega import Omega, omega_from
from hopfy.search import SparseRows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["QueryLayout", "ShardedHopfieldNetwork", "digest"]

QueryLayout = Literal["replicated", "sharded"]
Gradient = Literal["unrolled", "last", "implicit"]

_COUNTED = 0.01
"""Softmax weights above this count as taking part, as in `hopfy.HopfieldNetwork`."""


class ShardedHopfieldNetwork:
    r"""A `hopfy.HopfieldNetwork` whose memories are spread over the processes of a mesh.

    Every process creates it with its own memories, and all processes make the same calls in the same
    order. Answers are those of one network with all memories (those of rank 0 first): the same ids,
    states and certificates. Exact, not approximate: the support of the map on all memories lies in
    the union of the supports on the shards, so the shards send a few candidates and each process
    solves one small problem.

    ==================  ============================================  =============================
    omega               how the parts are merged                      sent by a process, per query
    ==================  ============================================  =============================
    softmax             log-sum-exp                                   D + 2 numbers
    simplex, k-subsets  candidates (`Omega.merges_by_support`)        16 bytes per candidate + rows
    any other           all scores, up to ``gather_limit`` bytes      8 n bytes
    ==================  ============================================  =============================

    Args:
        memories: (n, D), the patterns of this process, one per row; n may be 0 on some processes.
            A `DTensor` with placement ``Shard(0)`` brings its own mesh.
        omega: a regularizer or its name (see `hopfy.omega_from`), equal on all processes.
        beta: the inverse temperature, > 0, equal on all processes; a tensor broadcasts over the
            queries.
        mesh: a `DeviceMesh` with one dimension; None: all processes of the default group, or this
            process alone if there is none.
        values: (n, E), what to read out for each pattern.
        timeout: seconds to wait for other processes before a `LostProcessError`.
        gather_limit: bytes of scores that may be sent for maps that cannot be merged.

    Queries are **replicated** (``layout="replicated"``, all processes pass the same ones and get all
    answers) or **sharded** (``layout="sharded"``, each process passes its own, as many as it likes,
    and gets their answers).

    Gradients in queries, memories, values, beta and the tensors of omega are those of one network.
    With replicated queries all processes compute the same loss and call ``backward`` together; with
    sharded queries the loss is the sum of the processes' losses.

    >>> import torch, hopfy
    >>> from hopfy.distributed import ShardedHopfieldNetwork
    >>> net = ShardedHopfieldNetwork(torch.eye(3), "sparsemax", beta=2.0)  # one process
    >>> net
    ShardedHopfieldNetwork(3 of 3 memories with 3 coordinates on rank 0 of 1,
      omega=Tsallis(alpha=2.0), beta=2.0, merged by candidates)
    >>> net.retrieve(torch.tensor([[0.9, 0.1, -0.2], [0.5, 0.5, 0.0]])).pattern
    tensor([ 0, -1])
    """

    def __init__(
        self,
        memories: Tensor,
        omega: Omega | str = "sparsemax",
        beta: float | Tensor = 1.0,
        mesh: DeviceMesh | None = None,
        *,
        values: Tensor | None = None,
        timeout: float = 300.0,
        gather_limit: int = 1 << 30,
    ) -> None:
        memories, mesh = _local(memories, mesh)
        device = memories.device if isinstance(memories, Tensor) else torch.device("cpu")
        self._group = Group(mesh, timeout, device)

        def check() -> tuple[tuple[Tensor, Omega, Tensor | None], Mapping[str, int]]:
            rows = _checked_shard(memories)
            made = omega_from(omega)
            check_parameter(beta, BETA)
            given = None if values is None else _checked_values(values, rows)
            return (rows, made, given), {
                "number of coordinates": rows.shape[1],
                "dtype of the memories": digest(str(rows.dtype)),
                "omega": digest(made),
                "beta": digest(beta),
                "number of values": 0 if given is None else 1 + given.shape[1],
                "tensors that require grad": digest(
                    [rows.requires_grad, _needs_grad(beta), made.requires_grad, _needs_grad(given)]
                ),
            }

        self.memories, self.omega, self.values = self._group.agree(check)
        self.beta = beta
        counts = self._group.gather(lambda: [torch.tensor([len(self.memories)])])
        self.layout = Layout([int(each[0]) for each in counts], self._group.rank)
        if self.layout.total == 0:
            raise ValueError("expected at least one memory on some process, got none on any.")
        self._engine = Engine(
            Shard(self.memories), self.layout, self._group, self.omega, gather_limit
        )

    @classmethod
    def from_files(
        cls,
        paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        omega: Omega | str = "sparsemax",
        beta: float | Tensor = 1.0,
        mesh: DeviceMesh | None = None,
        **options: Any,
    ) -> ShardedHopfieldNetwork:
        """A network of the rows of safetensors (or ``.npy``) files, shared out evenly.

        The files' rows, one after the other in the order given, are split into as many equal parts
        as there are processes; each process reads its own part only. A safetensors file holds
        ``memories`` (N, D), or one tensor of any name.
        """
        timeout = float(options.get("timeout", 300.0))
        group = Group(mesh, timeout, torch.device("cpu"))
        rows = group.together(lambda: read_shard(paths, group.rank, group.size))
        return cls(rows, omega, beta, mesh, **options)

    # ------------------------------------------------------------------ facts

    def __len__(self) -> int:
        """The number of memories on all processes."""
        return self.layout.total

    def __repr__(self) -> str:
        own, size = self.memories.shape
        return (
            f"ShardedHopfieldNetwork({own} of {len(self)} memories with {size} coordinates on rank "
            f"{self._group.rank} of {self._group.size},\n  omega={self.omega}, beta={self.beta}, "
            f"merged by {self.merge})"
        )

    @property
    def merge(self) -> str:
        """How the shards' parts become one answer: candidates, log-sum-exp or all scores."""
        return self._engine.merge

    @property
    def traffic(self) -> Traffic:
        """What this process has exchanged since the network was made (a copy)."""
        return self._group.traffic.copy()

    # ------------------------------------------------------------------ answers

    @collective
    def update(self, queries: Tensor, *, layout: QueryLayout = "replicated") -> Tensor:
        """One step of the dynamics (Eq. 9), shape of the queries."""
        asked = self._asked(queries, layout, "update")
        with torch.set_grad_enabled(asked.differentiable):
            everyone = torch.arange(len(asked.rows))
            step = self._rules(asked, 1, None, False).advance(asked.rows, everyone)
            return asked.own(_spoil(step.states, asked.rows))

    @collective
    def weights(self, queries: Tensor, *, layout: QueryLayout = "replicated") -> Tensor:
        r""":math:`\hat y_\Omega(\beta X q)`, shape (..., M, N), for the ids of all processes.

        The answer has N numbers for each query; `support` has only the positive ones.
        """
        asked = self._asked(queries, layout, "weights")
        with torch.set_grad_enabled(asked.differentiable):
            if self.omega.is_softmax:
                dense = self._engine.dense_softmax(asked.cues)
            else:
                dense = self._engine.weights(asked.cues).dense().to(self.memories.dtype)
            return asked.own(_spoil(dense, asked.rows))

    @collective
    def support(self, queries: Tensor, *, layout: QueryLayout = "replicated") -> SparseRows:
        """The positive weights in compressed rows, by global id; not for softmax."""
        asked = self._asked(queries, layout, "support")
        if self.omega.is_softmax:
            raise ValueError("expected a sparse map, got softmax, whose weights are all positive.")
        with torch.set_grad_enabled(asked.differentiable):
            rows = self._engine.weights(asked.cues)
            return rows.take(torch.arange(asked.first, asked.stop)).to(self.memories.dtype)

    @collective
    def energy(self, queries: Tensor, *, layout: QueryLayout = "replicated") -> Tensor:
        """The energy with all its constants (Eq. 8), shape ``queries.shape[:-1]``."""
        asked = self._asked(queries, layout, "energy")
        with torch.set_grad_enabled(asked.differentiable):
            found = energy(self._engine, asked.cues)
            return asked.own(found.unsqueeze(-1)).squeeze(-1)

    def gradient(self, queries: Tensor, *, layout: QueryLayout = "replicated") -> Tensor:
        r"""The energy's gradient, :math:`q - X^\top \hat y_\Omega(\beta X q)`."""
        return queries - self.update(queries, layout=layout)

    @collective
    def retrieve(
        self,
        queries: Tensor,
        *,
        max_steps: int = 200,
        tol: float | None = None,
        trace: bool = False,
        gradient: Gradient = "unrolled",
        layout: QueryLayout = "replicated",
    ) -> Retrieval:
        """Update the queries until they are fixed points; see `hopfy.HopfieldNetwork.retrieve`.

        Ids (``pattern``, ``support``) count the memories of all processes, those of rank 0 first. A
        certificate holds against the memories of all processes.
        """
        options = (max_steps, tol, trace, gradient)
        asked = self._asked(queries, layout, f"retrieve{options}", _check_options(*options))
        unrolled = asked.differentiable and gradient == "unrolled"
        with torch.set_grad_enabled(unrolled):
            outcome = iterate(asked.rows, self._rules(asked, max_steps, tol, trace))
            if self.omega.is_softmax:
                with torch.no_grad():
                    before = asked.at(outcome.previous).detach()
                    outcome.size = self._engine.count_above(before, _COUNTED)
            state, readout = outcome.states, self._readout(outcome, asked)
        if asked.differentiable and not unrolled:
            state, readout = self._reattached(outcome, readout, asked, gradient)
        return asked.result(outcome, state, readout)

    # ------------------------------------------------------------------ inside

    def _step(self, cues: Cues) -> Step:
        return self._engine.step(cues)

    def _asked(
        self, queries: Tensor, layout: QueryLayout, call: str, error: Exception | None = None
    ) -> _Asked:
        """Checked queries of all processes as rows (M, D), and beta (M,)."""

        def check() -> tuple[Tensor, Mapping[str, int]]:
            if error is not None:
                raise error
            if layout not in get_args(QueryLayout):
                raise ValueError(
                    f"expected layout to be one of {get_args(QueryLayout)}, got {layout!r}."
                )
            checked = as_states(queries, self.memories)
            same: dict[str, int] = {
                "method and options": digest(call + layout),
                "gradient mode": digest([torch.is_grad_enabled(), checked.requires_grad]),
                "beta and omega": digest([self.beta, self.omega]),
            }
            if layout == "replicated":
                same |= {"shape of the queries": digest(tuple(checked.shape))}
                same |= {"queries": digest(checked)}
            return checked, same

        checked = self._group.agree(check)
        return _Asked(self, checked, layout)

    def _rules(self, asked: _Asked, max_steps: int, tol: float | None, trace: bool) -> Rules:
        tol = torch.finfo(asked.rows.dtype).eps ** 0.75 if tol is None else tol
        norm = self._largest_norm()
        rows_by_id = cast(Tensor, _RowsById(self._engine))

        def advance(states: Tensor, active: Tensor) -> Step:
            if not self.omega.varies_by_row:
                old = states[active]
                step = self._step(asked.at(old, active))
                return kept_in_place(old, rows_by_id, step, lambda r, m: certify(active[r], m))
            step = self._step(asked.at(states))
            rows = step.weights
            assert isinstance(rows, SparseRows)
            return Step(step.states[active], rows.take(active))

        def certify(rows: Tensor, members: Tensor) -> Tensor:
            beta = asked.beta.detach()[rows]
            with torch.no_grad():
                return prove(self._engine, members, beta, norm)

        return Rules(
            advance=advance,
            prove=certify,
            energy=(lambda s: energy(self._engine, asked.at(s))) if trace else None,
            max_steps=max_steps,
            tol=tol * norm,
        )

    def _largest_norm(self) -> float:
        def own() -> Tensor:
            norms = torch.linalg.vector_norm(self.memories.detach(), dim=-1)
            return torch.cat([norms, norms.new_zeros(1)]).amax(0, keepdim=True).double()

        return float(self._group.maximum(own))

    def _readout(self, outcome: Outcome, asked: _Asked) -> Tensor | None:
        if self.values is None:
            return None
        if isinstance(outcome.weights, SparseRows):
            wide = outcome.weights.to(torch.float64)
            return self._engine.mix(wide, self.values, self.values.dtype)
        return self._engine.softmax_mix(asked.at(outcome.previous), self.values)

    def _reattached(
        self, outcome: Outcome, readout: Tensor | None, asked: _Asked, gradient: Gradient
    ) -> tuple[Tensor, Tensor | None]:
        """The same states with a graph that is one step deep."""

        def update(rows: Tensor) -> Tensor:
            return self._step(asked.at(rows)).states

        with torch.enable_grad():
            if gradient == "last":
                before = outcome.previous.detach()
                again = update(before)
                state = outcome.states.detach() + (again - again.detach())
            else:
                state = attach_implicit_gradient(outcome.states, update)
                before = state
            if readout is None or self.values is None:
                return state, None
            cues = asked.at(before)
            again = (
                self._engine.softmax_mix(cues, self.values)
                if self.omega.is_softmax
                else self._engine.mix(self._engine.weights(cues), self.values, self.values.dtype)
            )
            return state, readout.detach() + (again - again.detach())


class _RowsById:
    """Sharded memories that are fetched when they are indexed by global ids."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getitem__(self, ids: Tensor) -> Tensor:
        wanted, place = torch.unique(ids, return_inverse=True)
        return self._engine.fetch(wanted, self._engine.shard.memories)[place]


class _Asked:
    """The queries of all processes as rows, and the way back to the caller's own."""

    def __init__(self, network: ShardedHopfieldNetwork, queries: Tensor, layout: QueryLayout):
        self._network, group = network, network._group
        self.shape = queries.shape
        flat = queries.reshape(-1, queries.shape[-1])
        shared = network.beta
        if layout == "sharded" and isinstance(shared, Tensor):
            shared = for_shards(shared, group)  # each process uses it for its own queries
        beta = group.together(lambda: _beta_rows(shared, queries))
        self.first, self.stop = 0, len(flat)
        if layout == "sharded":
            counts = [int(each[0]) for each in group.gather(lambda: [torch.tensor([len(flat)])])]
            self.first = sum(counts[: group.rank])
            self.stop = self.first + len(flat)
            flat, beta = gathered(flat, group), gathered(beta, group)
        self.rows, self.beta = flat, beta
        self._sharded = layout == "sharded"
        self.differentiable = torch.is_grad_enabled() and (
            any(_needs_grad(each) for each in (flat, network.memories, beta, network.values))
            or network.omega.requires_grad
        )

    @property
    def cues(self) -> Cues:
        """All queries and their beta."""
        return self.at(self.rows)

    def at(self, states: Tensor, active: Tensor | None = None) -> Cues:
        """States of the active queries in place of the queries."""
        return Cues(states, self.beta if active is None else self.beta[active])

    def own(self, rows: Tensor) -> Tensor:
        """This process's rows of a replicated answer (M, E), in the shape of its queries."""
        mine = (
            own_rows(rows, self.first, self.stop, self._network._group) if self._sharded else rows
        )
        return mine.reshape(*self.shape[:-1], rows.shape[-1])

    def result(self, outcome: Outcome, state: Tensor, readout: Tensor | None) -> Retrieval:
        rows, part = self.shape[:-1], slice(self.first, self.stop)
        weights = outcome.weights
        support = None
        if isinstance(weights, SparseRows):
            support = weights.take(torch.arange(self.first, self.stop))
        energies = None
        if outcome.energies:
            energies = torch.stack(outcome.energies)[:, part].reshape(-1, *rows)
        return Retrieval(
            state=self.own(state),
            steps=outcome.steps[part].reshape(rows),
            converged=outcome.converged[part].reshape(rows),
            certified=outcome.certified[part].reshape(rows),
            pattern=outcome.pattern[part].reshape(rows),
            size=outcome.size[part].reshape(rows),
            support=support,
            readout=None if readout is None else self.own(readout),
            energies=energies,
            _exact=outcome.exact[part],
        )


# ------------------------------------------------------------------ checks


def _local(memories: Any, mesh: DeviceMesh | None) -> tuple[Any, DeviceMesh | None]:
    """The local part of a `DTensor` and its mesh; anything else as it is."""
    if not isinstance(memories, Tensor) or type(memories).__name__ != "DTensor":
        return memories, mesh
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(memories, DTensor)
    if tuple(memories.placements) != (Shard(0),):
        raise ValueError(
            f"expected a DTensor with placements (Shard(0),), got {memories.placements}; "
            "redistribute it."
        )
    if mesh is not None and mesh != memories.device_mesh:
        raise ValueError("expected the mesh of the DTensor, or none, got another one.")
    return memories.to_local(), memories.device_mesh


def _checked_shard(memories: object) -> Tensor:
    rows = as_scores(memories, "memories")
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            "expected the memories of this process of shape (n, D), n >= 0, one pattern per row, got "
            f"shape {tuple(rows.shape)}; a process without memories passes torch.empty(0, D)."
        )
    if not bool(rows.detach().isfinite().all()):
        raise ValueError(
            "expected finite memories, got NaN or infinity in them; remove those patterns."
        )
    return rows


def _checked_values(values: object, memories: Tensor) -> Tensor:
    rows = as_scores(values, "values")
    if rows.ndim != 2 or len(rows) != len(memories) or rows.dtype != memories.dtype:
        raise ValueError(
            f"expected values of shape ({len(memories)}, E) and {memories.dtype}, one row for each "
            f"memory of this process, got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    return rows


def _check_options(
    max_steps: object, tol: Any, trace: object, gradient: object
) -> Exception | None:
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        return ValueError(f"expected max_steps to be an integer >= 1, got {max_steps!r}.")
    if tol is not None and not tol >= 0:
        return ValueError(f"expected tol >= 0 or None, got {tol!r}.")
    if gradient not in get_args(Gradient):
        return ValueError(f"expected gradient to be one of {get_args(Gradient)}, got {gradient!r}.")
    return None


def _beta_rows(beta: float | Tensor, queries: Tensor) -> Tensor:
    """Beta beside each query, (M,), in float64."""
    batch = queries.shape[:-1]
    if not isinstance(beta, Tensor):
        return torch.full((batch.numel(),), float(beta), dtype=torch.float64)
    try:
        return beta.double().expand(batch).reshape(-1)
    except RuntimeError:
        raise ValueError(
            f"expected beta to broadcast over the queries {tuple(batch)}, got shape "
            f"{tuple(beta.shape)}."
        ) from None


def _needs_grad(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _spoil(states: Tensor, queries: Tensor) -> Tensor:
    """NaN where the query was not finite, as in any product."""
    finite = queries.detach().isfinite().all(-1, keepdim=True)
    return states if bool(finite.all()) else torch.where(finite, states, torch.nan)


def digest(value: Any) -> int:
    """A number that tells different inputs apart (64 bits of BLAKE2)."""
    return int.from_bytes(_hash(value).digest(), "little", signed=True)


def _hash(value: Any) -> hashlib.blake2b:
    state = hashlib.blake2b(digest_size=8)
    if isinstance(value, Tensor):
        state.update(f"{value.dtype}{tuple(value.shape)}".encode())
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        state.update(raw.numpy().data)
    elif isinstance(value, Omega):
        state.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())
        for name, tensor in sorted(value.tensors().items()):
            state.update(name.encode() + _hash(tensor).digest())
        state.update(value.name.encode())
    elif isinstance(value, list):
        for each in value:
            state.update(_hash(each).digest())
    else:
        state.update(repr(value).encode())
    return state
