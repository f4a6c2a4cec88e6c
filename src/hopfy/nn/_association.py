"""The one core that all layers share: association in head space."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hopfy import functional as F
from hopfy._checks import check_count, values_can_be_read
from hopfy._facts import register_parameters, with_parameters_of
from hopfy.network import checked_state
from hopfy.omega import Omega, omega_from
from hopfy.states import State, state_from

__all__ = ["Association", "as_omega"]


def as_omega(omega: object) -> Omega | nn.Module:
    """A regularizer, its name, or a module called like one, such as `LearnableAlpha`."""
    if isinstance(omega, Omega | nn.Module):
        return omega
    return omega_from(omega)  # type: ignore[arg-type]


def as_state(state: object) -> State | nn.Module:
    """A space of states, its name, or a module such as `nn.LayerNorm` that maps (..., D) to (..., D)."""
    return state if isinstance(state, nn.Module) else state_from(state)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Association(nn.Module):
    r"""Weights :math:`\hat y_\Omega(\beta\, q X^\top)` and what they retrieve, head by head.

    With more than one step the weights first retrieve memories, which become the next queries (the
    update of a Hopfield network, Eq. 8); a query stops on its own once its weights move by ``tol``
    or less, so that no sample depends on the others in its batch.

    Args:
        heads: how many.
        omega: a regularizer, its name, or a module called as ``omega(scores, mask)``.
        beta: a number, a tensor of one number per head, an `nn.Parameter`, or `LearnableBeta`.
        max_steps: updates, counting the one that reads out the values.
        tol: the movement of a query's weights (2-norm) that counts as none.
        dropout: the share of the weights that is dropped while training.
        state: the regularizer of the states, its name, or a module: what a head retrieves in a step
            passes it.

    Each `nn.Parameter` of an omega or a state is a parameter of this module.
    """

    omega: Omega | nn.Module
    state: State | nn.Module
    beta: float | Tensor | nn.Module

    def __init__(
        self,
        heads: int,
        *,
        omega: Omega | str | nn.Module,
        beta: float | Tensor | nn.Module,
        max_steps: int = 1,
        tol: float = 0.0,
        dropout: float = 0.0,
        state: State | str | nn.Module = "euclidean",
    ) -> None:
        super().__init__()
        check_count(max_steps, "max_steps")
        if not _is_number(tol) or not tol >= 0:
            raise ValueError(f"expected tol to be 0 or more, got {tol!r}.")
        if not _is_number(dropout) or not 0 <= dropout < 1:
            raise ValueError(f"expected dropout in [0, 1), got {dropout!r}.")
        self.omega = as_omega(omega)
        self.max_steps, self.tol, self.dropout = max_steps, tol, dropout
        self.state = as_state(state)
        if isinstance(self.state, State):
            if max_steps > 1 and isinstance(self.omega, Omega):
                checked_state(self.state, self.omega)  # one step alone cannot grow without end
            register_parameters(self, "state", self.state)
        if isinstance(self.omega, Omega):
            register_parameters(self, "omega", self.omega)
        self._trained = {name.split("_")[0] for name, _ in self.named_parameters(recurse=False)}
        if isinstance(beta, Tensor) and not isinstance(beta, nn.Parameter):
            _check_beta(beta, heads)
            self.register_buffer("beta", beta)
        else:
            self.beta = _check_beta(beta, heads)

    def current(self, name: Literal["omega", "state"]) -> Any:
        """The omega or the state, with the parameters that this module has now."""
        described = getattr(self, name)
        return with_parameters_of(self, name, described) if name in self._trained else described

    def forward(
        self,
        queries: Tensor,
        memories: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        *,
        omega: Omega | str | nn.Module | None = None,
        need_weights: bool = False,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Retrieve values (..., heads, N, E) with queries (..., heads, M, D).

        ``mask`` (True = may be selected, or a number to add to the scores) broadcasts to the scores
        (..., heads, M, N); a shared head of memories serves all heads of queries. Returns the
        retrieved values and, if they are needed, the weights before dropout.
        """
        if queries.shape[-1] != memories.shape[-1]:
            raise ValueError(
                "expected queries and memories with as many features as each other, got "
                f"{queries.shape[-1]} and {memories.shape[-1]} in each head."
            )
        omega = self.current("omega") if omega is None else as_omega(omega)
        space = self.current("state")
        state, scale = self.scaled(queries)

        def attend(state: Tensor, values: Tensor, dropout: float, need_weights: bool) -> Any:
            shared = memories.ndim > 2 and memories.shape[-3] != state.shape[-3]
            found = F.attention(
                state,
                memories,
                values,
                mask,
                dropout,
                is_causal,
                scale,
                shared,
                omega=omega,
                return_weights=need_weights,
            )
            return (space(found[0]), found[1]) if need_weights else space(found)

        return self.iterate(state, memories, values, attend, need_weights)

    def iterate(
        self, state: Tensor, memories: Tensor, values: Tensor, attend: Any, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """All steps, by a function ``attend(state, values, dropout, need_weights)``.

        ``state`` are `scaled` queries. It gives what the states retrieve from the values, and the
        weights too where they are needed.
        """
        if self.max_steps > 1 and self.tol > 0:
            state = self._settled(state, memories, attend)
        elif self.max_steps > 1:
            state = self._stepped(state, memories, attend)
        dropout = self.dropout if self.training else 0.0
        found = attend(state, values, dropout, need_weights)
        return found if need_weights else (found, None)

    def _stepped(self, state: Tensor, memories: Tensor, attend: Any) -> Tensor:
        """The queries after all steps but the last; a fixed point is where nothing moves."""
        for _ in range(self.max_steps - 1):
            update = self.scaled(attend(state, memories, 0.0, False))[0]
            still = values_can_be_read(update) and torch.equal(update, state)
            state = update
            if still:
                break
        return state

    def _settled(self, state: Tensor, memories: Tensor, attend: Any) -> Tensor:
        """The same, where a query stops once its weights move by ``tol`` or less.

        A query that stopped keeps the state whose weights it has.
        """
        before: Tensor | None = None
        moving = torch.ones_like(state[..., :1], dtype=torch.bool)
        for _ in range(self.max_steps - 1):
            found, weights = attend(state, memories, 0.0, True)
            if before is not None:
                moved = (weights - before).detach().norm(dim=-1, keepdim=True) > self.tol
                moving = moving & moved
            if values_can_be_read(moving) and not bool(moving.any()):
                break
            before = weights
            state = torch.where(moving, self.scaled(found)[0], state)
        return state

    @property
    def keeps_states(self) -> bool:
        """Whether what a head retrieves stays as it is."""
        return isinstance(self.state, State) and self.state.is_identity

    def scaled(self, queries: Tensor) -> tuple[Tensor, float]:
        """Queries and a number whose product is the queries times beta."""
        beta = self._beta_beside_rows()
        return (queries * beta, 1.0) if isinstance(beta, Tensor) else (queries, float(beta))

    def _beta_beside_rows(self) -> float | Tensor:
        beta = self.beta() if isinstance(self.beta, nn.Module) else self.beta
        return beta[:, None, None] if isinstance(beta, Tensor) and beta.ndim else beta

    def extra_repr(self) -> str:
        omega = "" if isinstance(self.omega, nn.Module) else f"omega={self.omega}, "
        beta = f"beta={self.beta:.4g}, " if isinstance(self.beta, float | int) else ""
        state = "" if self.keeps_states else f"state={self.state}, "
        return f"{omega}{beta}{state}max_steps={self.max_steps}, tol={self.tol}, dropout={self.dropout}"


def _check_beta(beta: Any, heads: int) -> Any:
    if isinstance(beta, nn.Module):
        return beta
    if isinstance(beta, Tensor):
        if beta.ndim > 1 or beta.numel() not in (1, heads):
            raise ValueError(
                f"expected beta to be one number or one per head ({heads}), "
                f"got shape {tuple(beta.shape)}."
            )
    elif isinstance(beta, bool) or not isinstance(beta, int | float):
        raise TypeError(
            "expected beta to be a number, a tensor, an nn.Parameter or LearnableBeta, "
            f"got {beta!r}."
        )
    elif not 0 <= beta < math.inf:
        raise ValueError(f"expected beta to be finite and not negative, got {beta}.")
    return beta
