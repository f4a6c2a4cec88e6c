"""Hopfield networks with any regularizer."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from hopfy._checks import (
    BETA,
    Gradient,
    as_patterns,
    as_states,
    check_parameter,
    check_retrieval,
    expanded,
)
from hopfy._runtime.dispatch import with_version
from hopfy._runtime.precision import leaves_autocast
from hopfy._runtime.threads import one_thread_if_crowded
from hopfy.network._arguments import (
    checked_omega,
    checked_state,
    checked_values,
)
from hopfy.network._choice import StepperChoice, without_removed
from hopfy.network._dynamics import Outcome, Rules, iterate
from hopfy.network._energy import Energy, energy, energy_parts
from hopfy.network._fixed_points import kept_in_place
from hopfy.network._implicit import attach_implicit_gradient
from hopfy.network._indexed_loop import iterate_with_index
from hopfy.network._indexed_step import IndexedStep
from hopfy.network._proofs import FixedPointProofs
from hopfy.network._retrieval import Retrieval
from hopfy.network._step import Step, Stepper, mixture, widened
from hopfy.omega import Omega
from hopfy.search import ExactIndex, SparseRows
from hopfy.states import State

__all__ = ["HopfieldNetwork"]

# Scores held at once while energies are computed.
_BLOCK = 1 << 22


class HopfieldNetwork:
    r"""An associative memory: patterns, a regularizer and an inverse temperature.

    The network's energy is the Hopfield-Fenchel-Young energy (Eq. 8) and its dynamics minimize it:

    .. math:: q \leftarrow X^\top \hat y_\Omega(\beta X q) \qquad \text{(Eq. 9; Eq. 13 for SparseMAP)}.

    With a sparse map, patterns that are separated by the margin are recalled *exactly*, and
    `retrieve` says so with a certificate.

    Args:
        memories: (N, D), one pattern per row, or (..., N, D) for a batch of networks. A tensor that
            requires grad is used as it is and never indexed, so the network follows its training;
            any other is copied, so that later changes of it cannot contradict a certificate.
        omega: a regularizer such as ``Tsallis(1.5)`` or ``SparseMAP(KSubsets(3))``, or its name
            (see `omega_from`).
        beta: the inverse temperature, > 0; a tensor broadcasts over the queries (``...``, M).
        state: the regularizer :math:`\Psi` of the states, such as ``hopfy.states.LayerNorm()``, or its
            name. The update is then :math:`q \leftarrow \nabla\Psi^*(X^\top \hat y_\Omega(\beta X q))`.
        values: (..., N, E), what to read out for each pattern (hetero-association).

    >>> import torch, hopfy
    >>> net = hopfy.HopfieldNetwork(torch.eye(3), omega="sparsemax", beta=2.0)
    >>> net.retrieve(torch.tensor([[0.9, 0.1, -0.2], [0.5, 0.5, 0.0]]))
    Retrieval of 2 queries: every state is a fixed point, up to the tolerance
      1 x one stored pattern, exactly (1 certified)
      1 x a mixture of stored patterns (of 2 to 2 patterns)
      steps: 1 to 1
    """

    def __init__(
        self,
        memories: Tensor,
        omega: Omega | str = "sparsemax",
        beta: float | Tensor = 1.0,
        *,
        state: State | str = "euclidean",
        values: Tensor | None = None,
    ) -> None:
        self._memories = _owned(as_patterns(memories))
        self._omega = checked_omega(omega)
        check_parameter(beta, BETA)
        self._beta = beta
        self._values = None if values is None else checked_values(values, self._memories)
        self._state = checked_state(state, self._omega)
        self._choice = StepperChoice(self._memories, self._omega, self._state, beta)

    @classmethod
    def over(
        cls, index: ExactIndex, omega: Omega | str = "sparsemax", beta: float = 1.0
    ) -> HopfieldNetwork:
        """A network of the memories that an index holds now, which are not copied.

        It does not follow later changes of the index. If memories were removed from the index, only
        retrieval without gradients works; ``index.restricted(index.living)`` makes an index of the
        others, which gives a network that can do everything.

        >>> import torch, hopfy
        >>> index = hopfy.search.ExactIndex(torch.eye(3))
        >>> hopfy.HopfieldNetwork.over(index, beta=2.0).update(torch.tensor([0.9, 0.1, 0.0]))
        tensor([1., 0., 0.])
        """
        network = cls.__new__(cls)
        network._memories, network._omega = index.memories, checked_omega(omega)
        check_parameter(beta, BETA)
        network._beta, network._values = beta, None
        network._state = checked_state("euclidean", network._omega)
        network._choice = StepperChoice.over(index, network._omega, network._state)
        network._has_removed = index.living is not None
        return network

    @property
    def memories(self) -> Tensor:
        """(..., N, D), one pattern per row."""
        return self._memories

    @property
    def omega(self) -> Omega:
        """The regularizer of the weights."""
        return self._omega

    @property
    def beta(self) -> float | Tensor:
        """The inverse temperature."""
        return self._beta

    @property
    def state(self) -> State:
        """The regularizer of the states."""
        return self._state

    @property
    def values(self) -> Tensor | None:
        """(..., N, E), what is read out for each pattern."""
        return self._values

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("memories", "omega", "beta", "state", "values"):
            raise AttributeError(
                f"expected {name} to stay as it is, as indexes and certificates depend on it; make a "
                "new HopfieldNetwork."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        shape = tuple(self.memories.shape)
        state = "" if self.state.is_identity else f", state={self.state}"
        return f"HopfieldNetwork(memories of shape {shape}, omega={self.omega}, beta={self.beta}{state})"

    # ------------------------------------------------------------------ the energy

    @leaves_autocast
    def energy(self, queries: Tensor) -> Tensor:
        r"""The energy with all its constants, shape ``queries.shape[:-1]`` (Eq. 8):

        .. math:: E(q) = -\tfrac1\beta L_\Omega(\beta X q; y_0) + \tfrac12 \|q - X^\top y_0\|^2
                  + \tfrac12 (R^2 - \|X^\top y_0\|^2).

        For regularizers on the simplex :math:`y_0 = \mathbf 1/N` and :math:`R = M`, the largest
        pattern norm. For structures :math:`y_0 = \hat y_\Omega(0)` (k/N each for k-subsets) and R
        is the sum of the k largest norms. The energy is never negative and never rises along
        updates. It is computed in float64 from non-negative terms, then cast to the queries'
        dtype.

        >>> import torch, hopfy
        >>> net = hopfy.HopfieldNetwork(torch.eye(2), omega="sparsemax", beta=2.0)
        >>> net.energy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.1250, 0.2500])
        """
        queries, beta = self._prepared(queries)
        if not self._row_by_row or self._differentiable(queries):
            return energy(queries, self._all_memories, self.omega, beta, self.state)
        with torch.no_grad():
            parts = self._parts_of_queries(queries, beta)
            rows = self._all_memories
            flat = [energy(part, rows, self.omega, b, self.state) for part, b in parts]
            return torch.cat(flat).reshape(queries.shape[:-1])

    @leaves_autocast
    def energy_parts(self, queries: Tensor) -> Energy:
        """The concave and the convex part of the energy; their sum is `energy` (Eq. 8)."""
        queries, beta = self._prepared(queries)
        return energy_parts(queries, self._all_memories, self.omega, beta, self.state)

    @leaves_autocast
    def gradient(self, queries: Tensor) -> Tensor:
        r"""The energy's gradient, :math:`\nabla\Psi(q) - X^\top \hat y_\Omega(\beta X q)` (Eq. 23).

        For an indicator :math:`\Psi` it is the gradient of the concave part, which is the whole one
        inside the domain.
        """
        if self.state.is_identity:
            return queries - self.update(queries)
        wide, memories = self._wide_scores(queries), widened(self.memories)
        pull = mixture(wide, memories, self.omega)[0]
        return self.state.slope(queries) - pull.to(self.memories.dtype)

    # ------------------------------------------------------------------ the dynamics

    @leaves_autocast
    def scores(self, queries: Tensor) -> Tensor:
        r""":math:`\beta X q`, shape (..., M, N)."""
        return self._wide_scores(queries).to(self.memories.dtype)

    @leaves_autocast
    def weights(self, queries: Tensor) -> Tensor:
        r""":math:`\hat y_\Omega(\beta X q)`, shape (..., M, N)."""
        return self.omega(self._wide_scores(queries)).to(self.memories.dtype)

    def update(self, queries: Tensor) -> Tensor:
        """One step of the dynamics (Eq. 9), shape of the queries.

        >>> import torch, hopfy
        >>> hopfy.HopfieldNetwork(torch.eye(2)).update(torch.tensor([0.75, 0.25]))
        tensor([0.7500, 0.2500])
        """
        quick = self._choice.quick(queries)
        return self._update(queries) if quick is None else quick

    @leaves_autocast
    def _update(self, queries: Tensor) -> Tensor:
        queries, beta = self._prepared(queries)
        recorded, flat = self._differentiable(queries), _flat(queries)
        stepper = self._choice(flat.shape[0], recorded, keeps_weights=False)
        if isinstance(stepper, IndexedStep) and self.state.is_identity:
            own = flat.detach() if flat.requires_grad else flat
            states = stepper.update(own, _beside(beta))
            return states if flat is queries else states.reshape(queries.shape)
        with torch.set_grad_enabled(recorded):
            rules = self._rules(stepper, queries, beta, 1, None, False)
            everyone = torch.arange(queries.shape[:-1].numel(), device=queries.device)
            return rules.advance(flat, everyone).states.reshape(queries.shape)

    @leaves_autocast
    def retrieve(
        self,
        queries: Tensor,
        *,
        max_steps: int = 200,
        tol: float | None = None,
        trace: bool = False,
        gradient: Gradient = "unrolled",
    ) -> Retrieval:
        r"""Update the queries until they are fixed points.

        A query leaves as soon as its state is *proven* to be a fixed point (no further update is
        spent on it), or when an update moves it by no more than ``tol`` times the largest norm that
        a state can have.

        Args:
            queries: (..., M, D), or (D,) for one.
            max_steps: the largest number of updates, at least 1.
            tol: relative tolerance; by default :math:`\epsilon^{3/4}` (6e-6 in float32).
            trace: keep the energies of all steps.
            gradient: how the state depends on its inputs. ``"unrolled"``: through every step.
                ``"last"``: through the last step only, as if the state before it were given.
                ``"implicit"``: as the solution of :math:`q = f(q)`, by conjugate gradients on the
                energy's Hessian; memory does not grow with the steps. The latter two send nothing
                to the queries.
        """
        queries, beta = self._prepared(queries)
        check_retrieval(max_steps, tol, gradient, self.state)
        differentiable = self._differentiable(queries)
        recorded = differentiable and gradient == "unrolled"
        with one_thread_if_crowded():
            outcome = self._settle(queries, beta, max_steps, tol, trace, recorded)
        state = outcome.states.reshape(queries.shape)
        if differentiable and gradient != "unrolled":
            return self._reattached(outcome, state, queries.shape, gradient)
        readout = self._readout(outcome.weights, queries.shape)
        return _result(outcome, state, readout, queries.shape[:-1])

    # ------------------------------------------------------------------ inside

    _has_removed = False  # whether memories were removed from the index it was made of

    @property
    def _all_memories(self) -> Tensor:
        """The memories, for products with all of them; an error if some have been removed."""
        return without_removed(self._memories, self._has_removed)

    def _wide_scores(self, queries: Tensor) -> Tensor:
        queries, beta = self._prepared(queries)
        return (widened(queries) * beta) @ widened(self._all_memories).mT

    @property
    def _row_by_row(self) -> bool:
        """Whether each query can be moved on its own, in any order."""
        return self.memories.ndim == 2 and not self.omega.varies_by_row

    def _prepared(self, queries: Tensor) -> tuple[Tensor, float | Tensor]:
        """Checked queries, and beta as a number or as a tensor (..., 1) beside them."""
        queries = as_states(queries, self.memories)
        beta = self.beta
        if not isinstance(beta, Tensor) or beta.ndim == 0:
            return queries, beta
        batch = queries.shape[:-1]
        return queries, expanded(beta, batch, "beta to broadcast over the queries").unsqueeze(-1)

    def _parts_of_queries(
        self, queries: Tensor, beta: float | Tensor
    ) -> list[tuple[Tensor, float | Tensor]]:
        size = max(1, _BLOCK // self.memories.shape[0])
        flat = torch.split(_flat(queries), size)
        if not isinstance(beta, Tensor) or beta.ndim == 0:
            return [(part, beta) for part in flat]
        return list(zip(flat, torch.split(beta.reshape(-1, 1), size), strict=True))

    def _differentiable(self, queries: Tensor) -> bool:
        """Whether any input requires grad: queries, memories, values, beta, tensors of the omega."""
        if not torch.is_grad_enabled():
            return False
        return queries.requires_grad or any(each.requires_grad for each in self._tensors)

    @cached_property
    def _tensors(self) -> list[Tensor]:
        """All tensors that a result depends on, except the queries."""
        own = [each for each in (self.memories, self.beta, self.values) if isinstance(each, Tensor)]
        return [*own, *self.omega.tensors().values(), *self.state.tensors().values()]

    @cached_property
    def _is_plain(self) -> bool:
        """Whether states are sparse mixtures of patterns, as they are."""
        return self.state.is_identity and not self.omega.is_softmax

    def _settle(
        self,
        queries: Tensor,
        beta: float | Tensor,
        max_steps: int,
        tol: float | None,
        trace: bool,
        recorded: bool,
    ) -> Outcome:
        """Move the queries until they are fixed points; ``recorded``: autograd follows."""
        if tol is None:
            tol = torch.finfo(queries.dtype).eps ** 0.75
        flat = _flat(queries)
        stepper = self._choice(flat.shape[0], recorded)
        if isinstance(stepper, IndexedStep) and self._is_plain and not trace:
            tolerance = tol * stepper.largest_norm
            return iterate_with_index(flat, stepper, _beside(beta), max_steps, tolerance)
        with torch.set_grad_enabled(recorded):
            rules = self._rules(stepper, queries, beta, max_steps, tol, trace)
            return iterate(flat, rules)

    def _rules(
        self,
        stepper: Stepper,
        queries: Tensor,
        beta: float | Tensor,
        max_steps: int,
        tol: float | None,
        trace: bool,
    ) -> Rules:
        tol = 0.0 if tol is None else tol
        shape, betas = queries.shape, _beside(beta)
        prove = FixedPointProofs(self.memories, self.omega, self.state, stepper, betas, shape)

        def advance(states: Tensor, active: Tensor) -> Step:
            if self._row_by_row:
                old = states[active]
                own = betas[active] if isinstance(betas, Tensor) and betas.ndim else betas
                step = stepper.step(old, own).mapped(self.state, queries.dtype)
                return kept_in_place(old, self.memories, step, lambda r, m: prove(active[r], m))
            step = stepper.step(states.reshape(shape), beta).mapped(self.state, queries.dtype)
            return step.take(active)

        return Rules(
            advance=advance,
            prove=prove,
            energy=(lambda s: self.energy(s.reshape(shape)).flatten()) if trace else None,
            max_steps=max_steps,
            tol=tol * self._largest_norm(stepper) if tol else 0.0,  # norms are a pass over all
        )

    def _largest_norm(self, stepper: Stepper) -> float:
        """The scale against which movements are small."""
        if isinstance(stepper, IndexedStep):
            return stepper.largest_norm
        norms = torch.linalg.vector_norm(self.memories.detach(), dim=-1)
        return float(norms.max())

    def _readout(self, weights: SparseRows | Tensor | None, shape: torch.Size) -> Tensor | None:
        if self.values is None or weights is None:
            return None
        if self.values.ndim == 2 and isinstance(weights, SparseRows):
            return weights.matmul(self.values).reshape(*shape[:-1], -1)
        dense = weights.dense() if isinstance(weights, SparseRows) else weights
        return dense.reshape(*shape[:-1], -1) @ self.values

    def _reattached(
        self, outcome: Outcome, state: Tensor, shape: torch.Size, gradient: Gradient
    ) -> Retrieval:
        """The same result with a graph that is one step deep."""
        if gradient == "last":
            before = outcome.previous.reshape(shape)
            again = self.update(before)
            state = state + (again - again.detach())
        else:
            state = attach_implicit_gradient(state, self.update)
            before = state
        readout = self._readout(outcome.weights, shape)
        if readout is not None and self.values is not None:
            again = self.weights(before) @ self.values
            readout = readout.detach() + (again - again.detach())
        return _result(outcome, state, readout, shape[:-1])


def _result(outcome: Outcome, state: Tensor, readout: Tensor | None, rows: torch.Size) -> Retrieval:
    weights = outcome.weights
    return Retrieval(
        state=state,
        steps=outcome.steps.reshape(rows),
        converged=outcome.converged.reshape(rows),
        certified=outcome.certified.reshape(rows),
        pattern=outcome.pattern.reshape(rows),
        size=outcome.size.reshape(rows),
        support=weights if isinstance(weights, SparseRows) else None,
        readout=readout,
        energies=torch.stack(outcome.energies).reshape(-1, *rows) if outcome.energies else None,
        _exact=outcome.exact,
        _dense=weights if isinstance(weights, Tensor) else None,
    )


def _beside(beta: float | Tensor) -> float | Tensor:
    """A number, or (Q, 1) beside flat queries."""
    return beta.reshape(-1, 1) if isinstance(beta, Tensor) and beta.ndim else beta


def _flat(queries: Tensor) -> Tensor:
    """(Q, D), also where D is 0."""
    if queries.ndim == 2:
        return queries
    return queries.reshape(queries.shape[:-1].numel(), queries.shape[-1])


def _owned(memories: Tensor) -> Tensor:
    """A copy, which later changes outside do not reach; a tensor that is trained stays itself."""
    return memories if memories.requires_grad else with_version(memories.clone())
