"""What a search asks an omega, asked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._checks import constant
from hopfy._facts import Reach
from hopfy._kernels import entmax, ksubsets, normmax
from hopfy._kernels.select import Array, equation_of
from hopfy.omega import Omega

__all__ = ["PreparedMap"]

Solver = Callable[[Tensor, Tensor], Tensor]
_SOLVERS: dict[str, Solver] = {
    "entmax": entmax.solve,
    "normmax": normmax.solve,
    "ksubsets": ksubsets.solve,
}


@dataclass(frozen=True)
class PreparedMap:
    """An omega with the facts that a search needs; valid while its tensors do not change.

    Attributes:
        omega: the map.
        reach: where its support must lie; None: anywhere.
        lead: the exact margin of single patterns as a number: a candidate that is alone gets weight
            1 (Prop. 2). None where it is not known.
        solver: the compiled or plain solver of a closed form, without the checks around it, and its
            ``parameter``; None where there is none.
        equation: of a map that one compiled call can apply to few memories, else None.
    """

    omega: Omega
    reach: Reach | None
    lead: float | None
    solver: Solver | None
    parameter: Tensor | None
    equation: Array | None

    @classmethod
    def of(cls, omega: Omega) -> PreparedMap:
        if omega.varies_by_row:
            raise ValueError(
                f"expected an omega with the same parameters for all queries, got {omega!r}."
            )
        margin = omega.exact_margin(1)
        form = omega.closed_form
        solver = parameter = equation = None
        if form is not None and form[0] in _SOLVERS and isinstance(form[1], int | float):
            kind, number = form[0], float(form[1])
            solver, equation = _SOLVERS[kind], equation_of(kind, number)
            parameter = constant(number, torch.empty(0, device="cpu"))
        lead = None if margin is None else float(margin)
        return cls(omega, omega.reach(), lead, solver, parameter, equation)

    def __call__(self, scores: Tensor) -> Tensor:
        """The weights of scores (rows, width), float64 on the CPU, of which no gradient is wanted."""
        if self.solver is not None and self.parameter is not None and scores.numel():
            return self.solver(scores, self.parameter)
        with torch.no_grad():
            return self.omega(scores)

    def distances(self, beta: float | Tensor, queries: int) -> Tensor:
        """How far below the best scores weights can be, (queries,), for a number or one beta each."""
        distance = 0.0 if self.reach is None else self.reach.distance
        betas = torch.as_tensor(beta, dtype=torch.float64, device="cpu").expand(queries)
        return distance / betas
