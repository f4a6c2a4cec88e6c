"""Hopfield networks whose memories are spread over processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hopfy._checks import BETA, Gradient, as_states, check_parameter, check_retrieval
from hopfy.distributed._energy import energy
from hopfy.distributed._engine import Engine
from hopfy.distributed._files import read_shard
from hopfy.distributed._group import Group, collective
from hopfy.distributed._inputs import (
    QueryLayout,
    check_layout,
    checked_shard,
    checked_values,
    digest,
    local,
    needs_grad,
    spoil,
)
from hopfy.distributed._merge import Cues
from hopfy.distributed._proof import prove
from hopfy.distributed._queries import GroupQueries, RowsById
from hopfy.distributed._shard import Layout, Shard
from hopfy.distributed._transport import Traffic
from hopfy.network import (
    Outcome,
    Retrieval,
    Rules,
    Step,
    attach_implicit_gradient,
    checked_omega,
    checked_state,
    iterate,
    kept_in_place,
)
from hopfy.omega import Omega
from hopfy.search import SparseRows
from hopfy.states import Euclidean, State

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ShardedHopfieldNetwork"]

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
        state: the regularizer of the states, such as ``hopfy.states.LayerNorm()``, or its name; equal
            on all processes.
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
        state: State | str = "euclidean",
        values: Tensor | None = None,
        timeout: float = 300.0,
        gather_limit: int = 1 << 30,
    ) -> None:
        memories, mesh = local(memories, mesh)
        device = memories.device if isinstance(memories, Tensor) else torch.device("cpu")
        self._group = Group(mesh, timeout, device, type(self).__name__)

        def check() -> tuple[tuple[Tensor, Omega, State, Tensor | None], Mapping[str, int]]:
            rows = checked_shard(memories)
            made = checked_omega(omega)
            psi = checked_state(state, made)
            check_parameter(beta, BETA)
            given = None if values is None else checked_values(values, rows)
            return (rows, made, psi, given), {
                "number of coordinates": rows.shape[1],
                "dtype of the memories": digest(str(rows.dtype)),
                "omega": digest(made),
                "state": digest(psi),
                "beta": digest(beta),
                "length of the values": digest(None if given is None else given.shape[1]),
                "gather_limit": int(gather_limit),
                "tensors that require grad": digest(
                    [rows.requires_grad, needs_grad(beta), made.requires_grad, needs_grad(given)]
                ),
            }

        self.memories, self.omega, self.state, self.values = self._group.agree(check)
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
        group = Group(mesh, timeout, torch.device("cpu"), f"{cls.__name__}.from_files")
        rows = group.together(lambda: read_shard(paths, group.rank, group.size))
        return cls(rows, omega, beta, mesh, **options)

    @classmethod
    def _over(cls, engine: Engine, beta: float) -> ShardedHopfieldNetwork:
        """A network of what an engine already holds; equal on all processes."""
        network = cls.__new__(cls)
        network._group, network._engine, network.layout = engine.group, engine, engine.layout
        network.memories, network.values = engine.shard.memories, None
        network.omega, network.beta, network.state = engine.omega, beta, Euclidean()
        return network

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
            step = self._rules(asked, 1, 0.0, False).advance(asked.rows, everyone)
            return asked.own(spoil(step.states, asked.rows))

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
            return asked.own(spoil(dense, asked.rows))

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
            found = energy(self._engine, asked.cues, self.state)
            return asked.own(found.unsqueeze(-1)).squeeze(-1)

    def gradient(self, queries: Tensor, *, layout: QueryLayout = "replicated") -> Tensor:
        r"""The energy's gradient, :math:`\nabla\Psi(q) - X^\top \hat y_\Omega(\beta X q)`."""
        return self.state.slope(queries) - self._mixture(queries, layout)

    @collective
    def _mixture(self, queries: Tensor, layout: QueryLayout) -> Tensor:
        asked = self._asked(queries, layout, "gradient")
        with torch.set_grad_enabled(asked.differentiable):
            mixed = self._engine.step(asked.cues).states.to(asked.rows.dtype)
            return asked.own(spoil(mixed, asked.rows))

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
        check = functools.partial(check_retrieval, max_steps, tol, gradient, self.state)
        asked = self._asked(queries, layout, f"retrieve{options}", check)
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
        """The step with the state's map; patterns that are states come back bit for bit."""
        step = self._engine.step(cues, self.state.is_scale_free)
        return step.mapped(self.state, cues.queries.dtype)

    def _asked(
        self,
        queries: Tensor,
        layout: QueryLayout,
        call: str,
        check_more: Callable[[], None] = lambda: None,
    ) -> GroupQueries:
        """Checked queries of all processes as rows (M, D), and beta (M,)."""

        def check() -> tuple[Tensor, Mapping[str, int]]:
            check_more()
            check_layout(layout)
            checked = as_states(queries, self.memories)
            same: dict[str, int] = {
                "method and options": digest(call + layout),
                "gradient mode": digest([torch.is_grad_enabled(), checked.requires_grad]),
                "beta, omega and state": digest([self.beta, self.omega, self.state]),
            }
            shared = layout == "replicated"
            same["shape of the queries"] = digest(tuple(checked.shape)) if shared else 0
            same["queries"] = digest(checked) if shared else 0
            return checked, same

        checked = self._group.agree(check)
        return GroupQueries(self, checked, layout)

    def _rules(self, asked: GroupQueries, max_steps: int, tol: float | None, trace: bool) -> Rules:
        tol = torch.finfo(asked.rows.dtype).eps ** 0.75 if tol is None else tol
        norm = functools.cache(self._largest_norm)
        rows_by_id = cast(Tensor, RowsById(self._engine))

        def advance(states: Tensor, active: Tensor) -> Step:
            if not self.omega.varies_by_row:
                old = states[active]
                step = self._step(asked.at(old, active))
                return kept_in_place(old, rows_by_id, step, lambda r, m: certify(active[r], m))
            step = self._step(asked.at(states))
            return step.take(active)

        def certify(rows: Tensor, members: Tensor) -> Tensor:
            beta = asked.beta.detach()[rows]
            with torch.no_grad():
                if not self.state.is_identity:
                    return self._prove_as_states(members, beta, norm())
                return prove(self._engine, members, beta, norm())

        return Rules(
            advance=advance,
            prove=certify,
            energy=(lambda s: energy(self._engine, asked.at(s), self.state)) if trace else None,
            max_steps=max_steps,
            tol=tol * norm() if tol else 0.0,
        )

    def _prove_as_states(self, members: Tensor, beta: Tensor, norm: float) -> Tensor:
        """Prop. 2 for single patterns that are states of their own; the margin includes rounding."""
        margin = self.omega.exact_margin(1)
        if members.shape[1] != 1 or margin is None or not len(members):
            return torch.zeros(len(members), dtype=torch.bool)
        ids, back = torch.unique(members[:, 0], return_inverse=True)
        chosen = self._engine.fetch(ids, self.memories)[back]
        off = self.state.rounding(chosen).double() * chosen.shape[1] ** 0.5
        lead = 1 / beta + 2.01 * off * norm / float(margin)
        proven = prove(self._engine, members, torch.where(off > 0, 1 / lead, beta), norm)
        return proven & self.state.keeps(chosen)

    def _largest_norm(self) -> float:
        return float(self._group.maximum(lambda: self._engine.shard.largest_norm))

    def _readout(self, outcome: Outcome, asked: GroupQueries) -> Tensor | None:
        if self.values is None:
            return None
        if isinstance(outcome.weights, SparseRows):
            wide = outcome.weights.to(torch.float64)
            return self._engine.mix(wide, self.values, self.values.dtype)
        if isinstance(outcome.weights, Tensor):
            return self._engine.mix_dense(outcome.weights, self.values).to(self.values.dtype)
        return self._engine.softmax_mix(asked.at(outcome.previous), self.values)

    def _reattached(
        self, outcome: Outcome, readout: Tensor | None, asked: GroupQueries, gradient: Gradient
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
            again = self._read(asked.at(before), self.values)
            return state, readout.detach() + (again - again.detach())

    def _read(self, cues: Cues, values: Tensor) -> Tensor:
        """Mixtures of the values under the weights of these states."""
        engine = self._engine
        if self.omega.is_softmax:
            return engine.softmax_mix(cues, values)
        if not self.omega.is_sparse:
            return engine.mix_dense(self.omega(engine.all_scores(cues)), values).to(values.dtype)
        return engine.mix(engine.weights(cues), values, values.dtype)
