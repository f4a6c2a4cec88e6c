"""Proofs that states of a network are exact fixed points."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.network._step import Stepper
from hopfy.omega import Omega
from hopfy.states import State
from hopfy.theory import proves_fixed_point

__all__ = ["FixedPointProofs"]


class FixedPointProofs:
    """Which sums of patterns are fixed points (Props. 2 and 5), for the queries of one retrieval.

    Args:
        memories: (..., N, D).
        omega: the regularizer of the weights.
        state: the regularizer of the states.
        stepper: proves sets of patterns of one network; a batch of networks is proven one by one.
        betas: a number, or (Q, 1) beside flat queries.
        shape: (..., M, D), the shape of the queries.
    """

    def __init__(
        self,
        memories: Tensor,
        omega: Omega,
        state: State,
        stepper: Stepper,
        betas: float | Tensor,
        shape: torch.Size,
    ) -> None:
        self._memories, self._omega, self._state = memories.detach(), omega, state
        self._stepper, self._shape = stepper, shape
        self._betas = torch.as_tensor(betas, dtype=torch.float64).detach().flatten()

    def __call__(self, rows: Tensor, members: Tensor) -> Tensor:
        """Whether the sum of ``memories[members[p]]`` is a fixed point of query ``rows[p]``: (P,).

        True is a proof, False only the lack of one. Equal sets are asked about once.
        """
        beta = self._betas.to(rows.device)
        if not self._state.is_identity:
            return self._prove_as_states(beta, rows, members)
        if self._memories.ndim > 2:
            beta = beta.expand(self._shape[:-1].numel())[rows]
            return self._prove_in_batches(rows, members, beta)
        if beta.numel() > 1:
            return self._stepper.prove(members, beta[rows])
        sets, back = torch.unique(members, dim=0, return_inverse=True)
        return self._stepper.prove(sets, beta.expand(sets.shape[0]))[back]

    def _prove_as_states(self, beta: Tensor, rows: Tensor, members: Tensor) -> Tensor:
        r"""Prop. 2 for single patterns that are states of their own.

        The state made of a pattern is that pattern up to a rounding :math:`\rho`, so its lead is
        smaller by at most :math:`2 \rho M`: the margin has to pay for that too.
        """
        margin = self._omega.exact_margin(1)
        if self._memories.ndim > 2 or members.shape[1] != 1 or margin is None:
            return torch.zeros(rows.numel(), dtype=torch.bool, device=rows.device)
        largest_norm = torch.linalg.vector_norm(self._memories.double(), dim=-1).max()
        chosen = self._memories[members[:, 0]]
        rounding = self._state.rounding(chosen).double() * chosen.shape[1] ** 0.5
        own = beta.expand(rows.numel()) if beta.numel() == 1 else beta[rows]
        stricter = 1 / (1 / own + 2.01 * rounding * largest_norm / float(margin))
        proven = self._stepper.prove(members, torch.where(rounding > 0, stricter, own))
        return proven & self._state.keeps(chosen)

    def _prove_in_batches(self, rows: Tensor, members: Tensor, beta: Tensor) -> Tensor:
        batches = self._memories.flatten(0, -3)
        owner = rows // self._shape[-2]
        proven = torch.zeros(rows.numel(), dtype=torch.bool, device=rows.device)
        for batch in torch.unique(owner).tolist():
            own = owner == batch
            proven[own] = proves_fixed_point(batches[batch], members[own], self._omega, beta[own])
        return proven
