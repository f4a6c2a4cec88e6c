"""Which stepper computes the updates of a network."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hopfy.network._indexed_step import IndexedStep
from hopfy.network._step import DenseStep, Stepper
from hopfy.omega import Omega
from hopfy.search import ExactIndex
from hopfy.states import State

__all__ = ["StepperChoice", "without_removed"]

# With fewer memories a plan of principal directions does not pay.
_MANY_MEMORIES = 4096
# Dense weights (of softmax) that are kept rather than streamed, and those that are not wanted.
_MANY_WEIGHTS, _MANY_UNWANTED = 1 << 26, 1 << 22


_Quick = tuple[int, Callable[[Tensor], Tensor | None]]


class StepperChoice:
    """An index where nothing is recorded for gradients, else products that autograd can follow.

    The index scores by one rule (see `hopfy.search.ExactIndex`), so its answers do not depend on
    whether directions were planned, which happens once enough queries came to pay for it. Memories
    that are being trained get a new index, without a plan, at every call: nothing can be stale.
    """

    def __init__(
        self, memories: Tensor, omega: Omega, state: State, beta: float | Tensor | None = None
    ) -> None:
        self._beta = beta
        self._memories = memories
        self._state = state
        self._omega = omega
        self._queries_seen = 0
        self._kept: tuple[int, IndexedStep] | None = None
        self._given: IndexedStep | None = None
        self._has_removed = False
        self._quick: _Quick | None = None
        self._is_softmax = omega.is_softmax
        self._indexable = (
            memories.ndim == 2
            and memories.shape[1] > 0
            and memories.element_size() > 2
            and memories.device.type == "cpu"
            and (omega.is_sparse or omega.is_softmax)
            and omega.is_bounded
            and not omega.varies_by_row
        )

    @classmethod
    def over(cls, index: ExactIndex, omega: Omega, state: State) -> StepperChoice:
        """Steps through an index that was made before, as it is now."""
        choice = cls(index.memories, omega, state)
        choice._given = IndexedStep(index.copy(), omega)
        choice._has_removed = index.living is not None
        return choice

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_kept": None, "_quick": None, "_queries_seen": 0}  # made when needed

    def quick(self, queries: Tensor) -> Tensor | None:
        """The update of a few queries by a few memories in as few calls as possible.

        None where the stepper has to be asked: the first time, and for whatever needs gradients, an
        error message or a proof.
        """
        if self._quick is None:
            return None
        (version, update), memories = self._quick, self._memories
        if memories.requires_grad or memories._version != version:
            return None
        return update(queries)

    def _made_quick(self, version: int, step: IndexedStep) -> _Quick | None:
        memories, beta = self._memories, self._beta
        if not isinstance(beta, int | float) or memories.shape[0] >= _MANY_MEMORIES:
            return None
        if not self._state.is_identity or self._is_softmax:
            return None
        update = step.fixed_update(float(beta))
        return None if update is None else (version, update)

    def __call__(self, queries: int, recorded: bool, keeps_weights: bool = True) -> Stepper:
        """The stepper for so many queries; ``recorded``: autograd follows its products.

        ``keeps_weights``: dense weights are wanted too, if they are not too many.
        """
        limit = _MANY_WEIGHTS if keeps_weights else _MANY_UNWANTED
        if recorded or not self._can_be_indexed(queries, limit):
            return DenseStep(self._all_memories, self._omega, self._state)
        if self._given is not None:
            return self._given
        if self._memories.requires_grad:
            return self._indexed(0)
        version = self._memories._version
        if self._kept is None or self._kept[0] != version:
            self._queries_seen = 0
            self._kept = (version, self._indexed(0))
            self._quick = self._made_quick(version, self._kept[1])
        self._plan(queries, version)
        return self._kept[1]

    @property
    def _all_memories(self) -> Tensor:
        return without_removed(self._memories, self._has_removed)

    def _can_be_indexed(self, queries: int, limit: int) -> bool:
        if not self._indexable:
            return False
        # Softmax streams at the price of its weights, which may fit.
        return not self._is_softmax or queries * self._memories.shape[0] > limit

    def _indexed(self, directions: int | None) -> IndexedStep:
        return IndexedStep(ExactIndex.over(self._memories.detach(), directions), self._omega)

    def _plan(self, queries: int, version: int) -> None:
        """Principal directions, once the queries seen are as many as a plan costs."""
        count, size = self._memories.shape
        before = self._queries_seen
        self._queries_seen += queries
        if count >= _MANY_MEMORIES and before < size <= self._queries_seen:
            self._kept = (version, self._indexed(None))


def without_removed(memories: Tensor, has_removed: bool) -> Tensor:
    """The memories, for products with all of them; an error if some have been removed."""
    if has_removed:
        raise ValueError(
            "expected a network of an index without removed memories, as energies, gradients and "
            "dense weights need products with all of them, got one with removed memories; make it "
            "of index.restricted(index.living), which copies the others."
        )
    return memories
