r"""Sequential k-subsets: SparseMAP over subsets of size k that score their neighbors (Example 2).

.. math:: \arg\max_{(y, z) \in \mathcal{M}} \theta^\top y + t^\top z
          - \tfrac12 \left(\|y\|^2 + \|1 - y\|^2\right), \qquad
          \mathcal{M} = \operatorname{conv} \{(v, (v_i v_{i+1})_i) :
          v \in \{0, 1\}^N, 1^\top v = k\}.

Rows of scores (R, N) in float64; -inf marks positions that may not be selected, and pairs that
touch them do not count. ``edges`` (R, N - 1), or (1, N - 1) for all rows alike, holds the scores t.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.sequential import reference as plain
from hopfy._kernels.sequential.reference import best_subset
from hopfy._kernels.sequential.types import Details, Solution
from hopfy._runtime.compilation import compiled
from hopfy._runtime.threads import over_rows
from hopfy._warnings import ConvergenceWarning

__all__ = [
    "Details",
    "Solution",
    "best_subset",
    "jvp",
    "reference",
    "solve",
    "solve_details",
    "vjp",
]

# A gap above this share of the objective is worth a warning.
_WORTH_A_WARNING = 1e-6


def solve(scores: Tensor, edges: Tensor, k: Tensor, always_active: bool = False) -> Solution:
    """Solve rows (R, N); ``k`` (R) is int64 and ``always_active`` does without the relaxation."""
    kernels = compiled("sequential.cpu")
    if kernels is None:
        return plain.solve(scores, edges, k)
    solution = _blank(*scores.shape)
    over = partial(_relax, kernels, solution)
    over(scores, edges, k, kernels.ROUGH)
    verdicts = None
    if len(scores) and int(solution.size.amin()) == kernels.LARGE:
        missing = solution.missing.clone()
        scores, edges, k, verdicts = _reduced(kernels, solution, scores, edges, k)
        over(scores, edges, k, math.inf)
        solution.missing.copy_(missing)
    which = (solution.size[:, 0] < (1 if always_active else 0)).nonzero()[:, 0]
    if len(which):
        solution = _with_active_sets(kernels, solution, which, scores, edges, k)
    if verdicts is not None:
        _overwrite(kernels, solution, verdicts)
    return solution


def _relax(
    kernels: ModuleType, solution: Solution, scores: Tensor, edges: Tensor, k: Tensor, limit: float
) -> None:
    inputs = (scores.numpy(), edges.numpy(), k.numpy(), limit, _arrays(kernels, solution))
    rewarded = not edges.numel() or float(edges.amin()) >= 0.0
    signs = None if rewarded else np.empty(scores.shape, np.int8)
    over_rows(kernels.relax_rows, len(scores), 32 * scores.numel(), *inputs, signs)


def _reduced(
    kernels: ModuleType, solution: Solution, scores: Tensor, edges: Tensor, k: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows without what their large numbers settle: 0 or 1 in the last tensor, else -1."""
    (rows, n), which = scores.shape, (solution.size[:, 0] == kernels.LARGE).nonzero()[:, 0]
    inputs = (scores.clone(), edges.expand(rows, n - 1).clone(), k.clone())
    found = torch.empty(len(which), n, dtype=torch.int8, device="cpu")
    arrays = [part.numpy() for part in (which, *inputs, found)]
    over_rows(kernels.reduce_rows, len(which), 64 * found.numel(), *arrays)
    verdicts = torch.full((rows, n), -1, dtype=torch.int8, device="cpu")
    return *inputs, verdicts.index_copy_(0, which, found)


def _overwrite(kernels: ModuleType, solution: Solution, verdicts: Tensor) -> None:
    settled = verdicts >= 0
    solution.y.copy_(torch.where(settled, verdicts.to(solution.y.dtype), solution.y))
    solution.unit.masked_fill_(settled, kernels.CERTAIN)


def _with_active_sets(
    kernels: ModuleType,
    solution: Solution,
    which: Tensor,
    scores: Tensor,
    edges: Tensor,
    k: Tensor,
) -> Solution:
    """The solution with that of the given rows by active sets, and these."""
    inputs = (which, scores, edges, k)
    arrays = [*(part.numpy() for part in inputs), _arrays(kernels, solution)]
    parts: dict[int, tuple[Tensor, Tensor]] = {}

    def chunk(start: int, stop: int) -> None:
        memory = np.empty(0, np.uint8), np.empty(0)
        indicators, numbers = kernels.active_rows(start, stop, *arrays, *memory)
        parts[start] = torch.from_numpy(indicators), torch.from_numpy(numbers)

    over_rows(chunk, len(which), 512 * len(which) * scores.shape[1])
    indicators, numbers = zip(*(parts[start] for start in sorted(parts)), strict=True)
    solution = solution._replace(indicators=torch.cat(indicators), numbers=torch.cat(numbers))
    _warn_of_gaps(scores, solution)
    return solution


def reference(scores: Tensor, edges: Tensor, k: Tensor) -> Tensor:
    """The marginals by the plain active-set method, in torch; slow, and easy to check."""
    return plain.solve(scores, edges, k).y


def vjp(
    solution: Solution, edges: Tensor, cotangent: Tensor, wants_edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the scores (R, N) and, if wanted, every row's edges (R, N - 1).

    That of the scores has the cotangent's dtype, float32 or float64; sums are float64.
    """
    kernels = compiled("sequential.cpu")
    if kernels is None:
        return plain.vjp(solution, cotangent.double())
    rows, n = solution.y.shape
    scores_grad = torch.empty(rows, n, dtype=cotangent.dtype, device="cpu")
    edges_grad = solution.y.new_empty(rows, n - 1 if wants_edges else 0)
    over_rows(
        kernels.vjp_rows,
        rows,
        scores_grad.numel(),
        edges.numpy(),
        _arrays(kernels, solution),
        (solution.indicators.numpy(), solution.numbers.numpy()),
        cotangent.numpy(),
        scores_grad.numpy(),
        edges_grad.numpy(),
    )
    return scores_grad, edges_grad


def jvp(solution: Solution, edges: Tensor, tangent: Tensor, edge_tangent: Tensor) -> Tensor:
    """The change (R, N) of the marginals with scores (R, N) and pair scores (R, N - 1).

    All tensors are float64. It is the transpose of `vjp`.
    """
    kernels = compiled("sequential.cpu")
    if kernels is None:
        return plain.jvp(solution, tangent, edge_tangent)
    out = torch.empty(tangent.shape, dtype=torch.float64, device="cpu")
    over_rows(
        kernels.jvp_rows,
        len(out),
        out.numel(),
        edges.numpy(),
        _arrays(kernels, solution),
        (solution.indicators.numpy(), solution.numbers.numpy()),
        tangent.numpy(),
        edge_tangent.numpy(),
        out.numpy(),
    )
    return out


def solve_details(scores: Tensor, k: Tensor, edges: Tensor) -> Details:
    """Solve scores (..., N) with ``k`` (...) and ``edges`` (..., N - 1), and tell how it went.

    Where the relaxation is exact no subsets are listed; as many as there are independent fractional
    parts suffice for the mixture, and that number is given.
    """
    batch, n = scores.shape[:-1], scores.shape[-1]
    count = math.prod(batch)
    rows = scores.detach().double().reshape(-1, n).contiguous()
    pair_rows = edges.detach().double().expand(*batch, n - 1).reshape(count, n - 1).contiguous()
    solution = solve(rows, pair_rows, k.expand(batch).reshape(-1).long().contiguous())
    pairs = _pairs(solution, pair_rows)
    listed = solution.size[:, 0]
    enough = (solution.unit.amax(-1) + 1).clamp_min(1)
    return Details(
        solution.y.reshape(scores.shape),
        pairs.reshape(*batch, n - 1),
        torch.where(listed > 0, listed, enough).reshape(batch),
        solution.iterations.reshape(batch),
        solution.gap.reshape(batch),
    )


def _pairs(solution: Solution, edges: Tensor) -> Tensor:
    kernels = compiled("sequential.cpu")
    if kernels is None:
        return plain.pairs(solution)
    pairs = torch.empty_like(edges)
    kernels.pairs_rows(
        0,
        len(edges),
        edges.numpy(),
        _arrays(kernels, solution),
        (solution.indicators.numpy(), solution.numbers.numpy()),
        pairs.numpy(),
    )
    return pairs


def _blank(rows: int, n: int) -> Solution:
    return Solution(
        torch.empty(rows, n, dtype=torch.float64, device="cpu"),
        torch.empty(rows, n, dtype=torch.int32, device="cpu"),
        torch.zeros(rows, 2, dtype=torch.int64, device="cpu"),
        torch.zeros(rows, dtype=torch.int64, device="cpu"),
        torch.zeros(rows, dtype=torch.float64, device="cpu"),
        torch.zeros(rows, dtype=torch.int64, device="cpu"),
        torch.empty(0, dtype=torch.uint8, device="cpu"),
        torch.empty(0, dtype=torch.float64, device="cpu"),
    )


def _arrays(kernels: ModuleType, solution: Solution) -> object:
    """The part of a solution that has one entry per row, for the compiled loops."""
    return kernels.Answers(*(part.numpy() for part in solution[:6]))


def _warn_of_gaps(scores: Tensor, solution: Solution) -> None:
    if not bool((solution.gap > _WORTH_A_WARNING).any()):
        return
    scale = 1 + (scores.abs() * solution.y).nansum(-1)
    wide = solution.gap > _WORTH_A_WARNING * scale
    if bool(wide.any()):
        row = int(wide.nonzero()[0, 0])
        warnings.warn(
            f"sequential k-subsets stopped after {int(solution.iterations[row])} iterations in "
            f"{int(wide.sum())} of {len(wide)} rows; the first is row {row}, with a duality gap of "
            f"{float(solution.gap[row]):.1e}.",
            ConvergenceWarning,
            stacklevel=4,
        )
