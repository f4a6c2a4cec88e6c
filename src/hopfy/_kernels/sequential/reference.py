r"""Sequential k-subsets in plain torch: one row at a time, no relaxation, nothing kept up to date.

The active-set method of Niculae et al. (2018): keep subsets with positive weights that are optimal
for these subsets alone; while the best subset under the gradient is better than they are, it joins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.sequential.types import Solution

__all__ = ["best_subset", "jvp", "pairs", "solve", "vjp"]

_TOLERANCE = 1e-10
_ROUGH, _MOST = 1e3, 1e300


def best_subset(scores: Tensor, edges: Tensor, k: int) -> Tensor:
    """The indicator vector (N) of the best subset of size k, by dynamic programming in O(Nk)."""
    n = len(scores)
    nothing = scores.new_full((k + 1,), -torch.inf)
    off, on = nothing.clone(), nothing.clone()
    off[0] = 0.0
    history = []
    for i in range(n):
        history.append((off, on))
        pulled = on + edges[i - 1] if i > 0 else on
        off, on = torch.maximum(off, on), nothing.clone()
        on[1:] = scores[i] + torch.maximum(history[-1][0], pulled)[:-1]
    subset = torch.zeros_like(scores)
    selected = bool(on[k] > off[k])
    for i in reversed(range(n)):
        off, on = history[i]
        subset[i] = float(selected)
        k -= selected
        pull = edges[i - 1] if selected and i > 0 else 0.0
        selected = bool(on[k] + pull > off[k])
    return subset


def solve(scores: Tensor, edges: Tensor, k: Tensor) -> Solution:
    """Solve rows (R, N) with edges (R or 1, N - 1) and ``k`` (R)."""
    y, unit = (
        torch.zeros_like(scores),
        torch.full(scores.shape, -2, dtype=torch.int32, device="cpu"),
    )
    size = torch.zeros(len(scores), 2, dtype=torch.int64, device="cpu")
    iterations, gap = torch.zeros_like(k), scores.new_zeros(len(scores))
    missing = torch.zeros_like(k)
    indicators, numbers = [scores.new_empty(0)], [scores.new_empty(0)]
    for row, (theta, edge) in enumerate(zip(scores, edges.expand(len(scores), -1), strict=True)):
        kept = theta != -torch.inf
        pair = torch.where(kept[1:] & kept[:-1], edge, 0.0)
        if not bool(theta[kept].isfinite().all() and pair.isfinite().all()):
            y[row] = torch.nan
            continue
        if not bool(kept.any()):
            continue
        missing[row] = (k[row] - kept.sum()).clamp_min(0)
        budget = int(k[row] - missing[row])
        settled, theta, pair, kept_open, left = _reduced(theta, pair, kept, budget)
        subsets, weights, gap[row], iterations[row] = _active_set(theta, pair, kept_open, left)
        subsets = torch.where(settled >= 0, settled.to(theta), subsets)
        y[row] = weights @ subsets
        differ = subsets.amin(0) < subsets.amax(0)
        y[row] = torch.where(differ, y[row], subsets[0])
        unit[row, kept] = -1
        size[row, 0], size[row, 1] = len(subsets), int(differ.sum())
        unit[row, differ] = torch.arange(int(differ.sum()), dtype=torch.int32, device="cpu")
        indicators.append(subsets[:, differ].flatten())
        overlaps = subsets[:, differ] @ subsets[:, differ].mT
        numbers += [torch.linalg.pinv(overlaps, hermitian=True).flatten(), weights]
    lists = torch.cat(indicators).byte(), torch.cat(numbers)
    return Solution(y, unit, size, iterations, gap, missing, *lists)


def _reduced(
    theta: Tensor, edges: Tensor, kept: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Take out what large scores settle, by the exchange test of `cpu_presolve`.

    Returns 0 or 1 (else -1) for the settled positions, and the scores, the pair scores, the
    positions and the budget that are left.
    """
    settled = torch.where(kept, -1, 0)
    while bool(kept.any()) and float(theta[kept].abs().max()) > _ROUGH:
        least = theta[kept][theta[kept].abs().argmin()]
        theta = torch.where(kept, (theta - least).clamp(-_MOST, _MOST), theta)
        n, pad = int(kept.sum()), torch.nn.functional.pad
        around = torch.stack([pad(edges, (1, 0)), pad(edges, (0, 1))])
        upper = theta + around.clamp_min(0).sum(0)
        noise = 1e-14 * (theta.abs() + around.abs().sum(0))
        lower = theta + around.clamp_max(0).sum(0) - 2 - noise
        high = lower[kept].topk(k).values[-1:] if k > 0 else upper.new_tensor([torch.inf])
        low = (
            (-upper[kept]).topk(n - k).values[-1:].neg()
            if k < n
            else upper.new_tensor([-torch.inf])
        )
        on, off = kept & (lower > low), kept & (upper < high)
        if not bool((on | off).any()):
            break
        on = on & ~off
        settled = torch.where(on, 1, torch.where(off, 0, settled))
        gains = torch.where(on[:-1], edges, 0.0), torch.where(on[1:], edges, 0.0)
        theta = theta + pad(gains[0], (1, 0)) + pad(gains[1], (0, 1))
        kept, k = kept & ~on & ~off, k - int(on.sum())
        edges = torch.where(kept[1:] & kept[:-1], edges, 0.0)
    return settled, theta, edges, kept, k


def _active_set(
    theta: Tensor, edges: Tensor, kept: Tensor, k: int
) -> tuple[Tensor, Tensor, float, int]:
    """The active subsets (m, N), their weights, the gap and the iterations of one row."""
    if not bool(kept.any()):
        return torch.zeros_like(theta)[None], theta.new_ones(1), 0.0, 0
    # A masked position must never pay; a finite price keeps the arithmetic free of inf - inf.
    price = 1 + 2 * (theta[kept].abs().sum() + edges.abs().sum() + 2 * len(theta))
    theta = torch.where(kept, theta, -price)
    subsets = best_subset(theta, edges, k)[None]
    weights = theta.new_ones(1)
    gap, limit = 0.0, 1000 + 20 * len(theta)
    for iteration in range(limit):
        gradient = theta - 2 * weights @ subsets
        joining = best_subset(gradient, edges, k)
        slopes = _scores(torch.cat([subsets, joining[None]]), gradient, edges)
        gap = float(slopes[-1] - weights @ slopes[:-1])
        known = bool((subsets == joining).all(-1).any())
        if known or gap <= _TOLERANCE + 1e-15 * float(gradient[kept].abs().sum()):
            return subsets, weights, max(gap, 0.0), iteration
        subsets = torch.cat([subsets, joining[None]])
        weights = torch.cat([weights, weights.new_zeros(1)])
        subsets, weights = _optimal_weights(subsets, weights, theta, edges)
    return subsets, weights, gap, limit


def _optimal_weights(
    subsets: Tensor, weights: Tensor, theta: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor]:
    """Walk to the best weights; subsets whose weight vanishes on the way are dropped."""
    while True:
        direction = _direction(subsets, weights, theta, edges)
        falling = direction < 0
        steps = torch.where(falling, weights / -direction, torch.inf)
        step = min(1.0, float(steps.min()))
        weights = weights + step * direction
        if step == 1.0:
            return subsets, weights
        keep = torch.arange(len(weights), device="cpu") != int(steps.argmin())
        subsets, weights = subsets[keep], weights[keep] / weights[keep].sum()


def _direction(subsets: Tensor, weights: Tensor, theta: Tensor, edges: Tensor) -> Tensor:
    """To the optimum over these subsets; without end where they are dependent and one pays more."""
    m = len(subsets)
    slopes = _scores(subsets, theta - 2 * weights @ subsets, edges)
    slopes = slopes - slopes.mean()
    system = subsets.new_zeros(m + 1, m + 1)
    system[:m, :m] = 2 * subsets @ subsets.mT
    system[:m, m] = system[m, :m] = 1
    right = torch.cat([slopes, slopes.new_zeros(1)])
    solved = torch.linalg.pinv(system, hermitian=True, rtol=1e-10) @ right
    left_over = (right - system @ solved)[:m]
    if float(left_over.abs().max()) > 1e-9 * (1 + float(slopes.abs().max())):
        solved = left_over * 1e12
    return torch.Tensor(solved)[:m]


def _scores(subsets: Tensor, theta: Tensor, edges: Tensor) -> Tensor:
    return subsets @ theta + (subsets[:, 1:] * subsets[:, :-1]) @ edges


def vjp(solution: Solution, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients with respect to scores and edges: a change of scores moves the subsets' weights."""
    y = solution.y
    scores_grad, edges_grad = torch.zeros_like(y), torch.zeros_like(y[:, 1:])
    for row, subsets, inverse, _ in _rows(solution):
        if len(subsets) < 2:
            continue
        change = _weights_change(inverse, subsets @ cotangent[row])
        scores_grad[row] = change @ subsets
        edges_grad[row] = change @ (subsets[:, 1:] * subsets[:, :-1])
    spoiled = y.isnan().any(-1, keepdim=True)
    return scores_grad.masked_fill(spoiled, torch.nan), edges_grad.masked_fill(spoiled, torch.nan)


def _weights_change(inverse: Tensor, pull: Tensor) -> Tensor:
    ones = inverse.sum(-1)
    change = inverse @ pull
    return 0.5 * (change - ones * change.sum() / ones.sum())


def jvp(solution: Solution, tangent: Tensor, edge_tangent: Tensor) -> Tensor:
    """How the marginals change with the scores and the pair scores: the transpose of `vjp`."""
    out, spoiled = torch.zeros_like(solution.y), solution.y.isnan().any(-1, keepdim=True)
    for row, subsets, inverse, _ in _rows(solution):
        if len(subsets) < 2:
            continue
        pull = _scores(subsets, tangent[row], edge_tangent[row])
        out[row] = _weights_change(inverse, pull) @ subsets
    return out.masked_fill(spoiled, torch.nan)


def pairs(solution: Solution) -> Tensor:
    """The probability (R, N - 1) that both neighbors are selected."""
    result = torch.minimum(solution.y[:, 1:], solution.y[:, :-1])
    for row, subsets, _, weights in _rows(solution):
        result[row] = weights @ (subsets[:, 1:] * subsets[:, :-1])
    return result


def _rows(solution: Solution) -> list[tuple[int, Tensor, Tensor, Tensor]]:
    """Row, subsets (m, N), inverse of their overlaps and weights of every row that has them."""
    y, unit, numbers = solution.y, solution.unit, solution.numbers
    found = []
    first, second = 0, 0
    for row, (m, count) in enumerate(solution.size.tolist()):
        if m == 0:
            continue
        subsets = y[row].round().expand(m, -1).clone()
        own = solution.indicators[first : first + m * count]
        subsets[:, unit[row] >= 0] = own.view(m, count).to(y)
        inverse = numbers[second : second + m * m].view(m, m)
        weights = numbers[second + m * m : second + m * m + m]
        found.append((row, subsets, inverse, weights))
        first, second = first + m * count, second + m * m + m
    return found
