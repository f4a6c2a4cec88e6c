"""`F.attention` and `SparseCache` against torch's own attention with the same mask.

Nothing is timed before its result was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.bench._layers import Row, peak_megabytes
from hopfy.bench._timing import best_times
from hopfy.nn import LearnableAlpha, SparseCache

__all__ = ["bench_attention"]

_SIZE = 64
_LIMITS = {"softmax": 1.05, "sparsemax": 0.6, "1.5-entmax": 0.6}


def bench_attention(progress: Callable[[str], None]) -> list[Row]:
    """All comparisons of this module."""
    found: list[Row] = []
    for length, heads in ((2048, 4), (4096, 2), (8192, 1)):
        progress(f"causal, length {length}")
        found += training(length, heads, is_causal=True)
    progress("all pairs, length 4096")
    found += training(4096, 2, is_causal=False)
    progress("memory")
    found += memory()
    progress("decoding")
    for count, limit in ((32_768, 0.9), (131_072, 0.6)):
        found += decoding(count, limit)
    return found


def training(length: int, heads: int, is_causal: bool, rounds: int = 3) -> list[Row]:
    """Forward and backward against `scaled_dot_product_attention`."""
    torch.manual_seed(0)
    data = [torch.randn(1, heads, length, _SIZE, requires_grad=True) for _ in range(3)]
    cotangent = torch.randn(1, heads, length, _SIZE)
    names = ["softmax", "sparsemax", "1.5-entmax", "1.3-entmax", "3-entmax", "2-normmax"]
    omegas: dict[str, Any] = {name: name for name in names}
    omegas["learned alpha"] = LearnableAlpha(heads, init=1.47)
    omegas["1.47-entmax"] = "1.47-entmax"
    for omega in omegas.values():
        _check([x[:, :, :256] for x in data], is_causal, omega)

    def step(attend: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            for x in data:
                x.grad = None
            attend().backward(cotangent)

        return run

    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v = data
    calls = {"torch": step(partial(sdpa, q, k, v, is_causal=is_causal))}
    for name, omega in omegas.items():
        calls[name] = step(partial(F.attention, q, k, v, is_causal=is_causal, omega=omega))
    times = best_times(calls, rounds=rounds, seconds=90.0, in_a_row=1)
    theirs = times.pop("torch")
    where = f"{'causal' if is_causal else 'all pairs'}, length {length}, forward + backward"
    rows = []
    for name, ours in times.items():
        limit = _LIMITS.get(name, 0.9)
        limit = 0.35 if not is_causal and limit == 0.6 else limit
        against = theirs
        if name == "learned alpha":
            against, limit = times["1.47-entmax"], 2.0
        rows.append(Row(f"{name}, {where}", 1e3 * ours, 1e3 * against, "ms", ours / against, limit))
    return rows


def memory(heads: int = 2) -> list[Row]:
    """Peak memory at two lengths: it should double, not quadruple."""
    rows = []
    for omega in ("sparsemax", "1.5-entmax", "1.05-entmax"):
        peaks = []
        for length in (2048, 4096):
            data = [torch.randn(1, heads, length, _SIZE, requires_grad=True) for _ in range(3)]
            peaks.append(peak_megabytes(_backward(data, omega)))
        ratio = peaks[1] / peaks[0]
        name = f"{omega}, peak memory at length 4096 over 2048"
        rows.append(Row(name, peaks[1], peaks[0], "MB", ratio, 2.2))
    return rows


def _backward(data: list[Tensor], omega: str) -> Callable[[], None]:
    q, k, v = data
    return lambda: F.attention(q, k, v, omega=omega).sum().backward()


def decoding(count: int, limit: float, heads: int = 2, size: int = 32) -> list[Row]:
    """One query over isotropic keys (the hard case) and over keys with few strong directions."""
    torch.manual_seed(0)
    shape = (1, heads, count, size)
    spectrum = torch.linspace(3, 0.1, size)
    kinds = {"isotropic": torch.randn(shape), "anisotropic": torch.randn(shape) * spectrum}
    rows = []
    for kind, keys in kinds.items():
        times = _steps(keys, torch.randn(shape), torch.randn(1, heads, 1, size))
        theirs = times.pop("torch")
        for name, ours in times.items():
            bound = 1.3 if kind == "isotropic" else limit
            where = f"{name}, one query over {count} {kind} keys"
            rows.append(Row(where, 1e3 * ours, 1e3 * theirs, "ms", ours / theirs, bound))
    return rows


@torch.no_grad()
def _steps(keys: Tensor, values: Tensor, query: Tensor) -> dict[str, float]:
    cache = SparseCache()
    cache.append(keys, values)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    calls: dict[str, Callable[[], Any]] = {"torch": partial(sdpa, query, keys, values)}
    for omega in ("sparsemax", "1.5-entmax"):
        wanted = F.attention(query, keys, values, omega=omega)
        torch.testing.assert_close(cache.attend(query, omega), wanted)
        calls[omega] = partial(cache.attend, query, omega)
    return best_times(calls, rounds=10, seconds=20.0)


def _check(data: list[Tensor], is_causal: bool, omega: Any) -> None:
    """The path without weights equals the one that holds all of them, gradients included."""
    data = [x.detach().requires_grad_() for x in data]
    q, k, v = data
    answers = []
    for return_weights in (False, True):
        found = F.attention(
            q, k, v, is_causal=is_causal, omega=omega, return_weights=return_weights
        )
        output = found[0] if return_weights else found
        answers.append([output, *torch.autograd.grad(output.square().sum(), data)])
    for ours, wanted in zip(*answers, strict=True):
        torch.testing.assert_close(ours, wanted, atol=1e-3, rtol=1e-3)
