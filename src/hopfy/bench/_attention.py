"""`F.attention` and `SparseCache` against torch's own attention with the same mask.

Nothing is timed before its result was checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.bench._layers import Row, peak_megabytes
from hopfy.bench._timing import best_times, on_threads
from hopfy.bench._trained import trained_heads
from hopfy.nn import HopfieldAttention, LearnableAlpha, SparseCache
from hopfy.paper.data import MissingDataError

__all__ = ["ATTENTION_PARTS", "bench_attention"]

_SIZE = 64
_OMEGAS = (
    "softmax",
    "sparsemax",
    "1.5-entmax",
    "1.3-entmax",
    "3-entmax",
    "2-normmax",
    "3-subsets",
)
_LIMITS = {"softmax": 1.05, "sparsemax": 0.6, "1.5-entmax": 0.6}


def bench_attention(progress: Callable[[str], None]) -> list[Row]:
    """All comparisons of this module."""
    found = []
    for name, part in ATTENTION_PARTS.items():
        progress(name)
        try:
            found += part()
        except (ImportError, MissingDataError) as missing:
            progress(f"{name} is left out: {missing}")
    return found


def _random(length: int, heads: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, heads, length, _SIZE) for _ in range(3)]


def _trained(length: int, heads: int) -> list[Tensor]:
    """Inputs of MiniLM's third layer on movie reviews, which it reads 512 tokens at a time."""
    return [x[:, :heads, :length].contiguous() for x in trained_heads(8192, 2)]


def _trained_cache(count: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Keys, values and ten queries of MiniLM; beyond 65,536 tokens the same keys come again."""
    q, k, v = trained_heads(65_536, 2)
    keys, values = (x[:, :2].repeat(1, 1, 2, 1)[:, :, :count].contiguous() for x in (k, v))
    return keys, values, [q[:, :2, i : i + 1].contiguous() for i in range(100, 60_000, 6000)]


def _with_one_and_two_threads(rows: Callable[[int], list[Row]]) -> list[Row]:
    cores = os.cpu_count() or 1
    return [row for threads in (1, 2)[:cores] for row in rows(threads)]


def _clock(threads: int) -> Callable[[], float]:
    """Processor time of one thread does not depend on other processes; two need a quiet machine."""
    return process_time if threads == 1 else perf_counter


def _on(threads: int) -> str:
    return ", two threads" if threads == 2 else ""


def small_layer(threads: int = 1) -> list[Row]:
    """A layer of 64 features and 4 heads on 2 x 50 tokens, against torch's own."""
    torch.manual_seed(0)
    x = torch.randn(2, 50, 64, requires_grad=True)
    layers: dict[str, torch.nn.Module] = {
        "torch": torch.nn.MultiheadAttention(64, 4, batch_first=True)
    }
    for omega in _OMEGAS:
        layers[omega] = HopfieldAttention(64, 4, batch_first=True, omega=omega)

    def step(layer: torch.nn.Module) -> Callable[[], None]:
        return lambda: layer(x, x, x, need_weights=False)[0].sum().backward()

    calls = {name: step(layer) for name, layer in layers.items()}
    with on_threads(threads):
        times = best_times(calls, rounds=150, seconds=15.0, clock=_clock(threads))
    return _against_torch(times, f"layer of 2 x 50 x 64{_on(threads)}", 1.3)


def one_query(threads: int = 1, heads: int = 8) -> list[Row]:
    """One query of each of 8 heads of 64 over 4096 keys, without and with gradients."""
    rows = []
    for gradients in (False, True):
        q, k, v = _random(4096, heads)
        q = q[:, :, :1].clone()
        for x in (q, k, v):
            x.requires_grad_(gradients)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        finish = _both_ways if gradients else _forward_only
        calls = {"torch": finish(partial(sdpa, q, k, v))}
        for omega in _OMEGAS:
            calls[omega] = finish(partial(F.attention, q, k, v, omega=omega))
        with on_threads(threads):
            times = best_times(calls, rounds=60, seconds=15.0, clock=_clock(threads))
        where = "one query over 4096 keys" + (", with gradients" if gradients else "")
        rows += _against_torch(times, where + _on(threads), 1.0)
    return rows


def _against_torch(times: dict[str, float], where: str, limit: float) -> list[Row]:
    theirs = times.pop("torch")
    return [
        Row(
            f"{name}, {where}",
            1e3 * ours,
            1e3 * theirs,
            "ms",
            ours / theirs,
            max(limit, _LIMITS[name]) if name == "softmax" else limit,
        )
        for name, ours in times.items()
    ]


def variable_lengths(omega: str = "1.5-entmax") -> list[Row]:
    """Packed sequences of 32 to 1024 tokens: the time over that of padding all to the longest."""
    torch.manual_seed(0)
    lengths = [32, 64, 96, 128, 192, 256, 512, 1024]
    edges = torch.tensor([0, *lengths]).cumsum(0)
    packed = [torch.randn(sum(lengths), 4, _SIZE, requires_grad=True) for _ in range(3)]
    padded = [torch.randn(len(lengths), 4, 1024, _SIZE, requires_grad=True) for _ in range(3)]
    there = (torch.arange(1024) < torch.tensor(lengths)[:, None])[:, None, None]

    (q, k, v), (a, b, c) = packed, padded
    sdpa = torch.nn.functional.scaled_dot_product_attention
    calls: dict[str, Callable[[], None]] = {
        "packed": _both_ways(partial(F.varlen_attention, q, k, v, edges, omega=omega)),
        "masked": _both_ways(partial(F.attention, a, b, c, attn_mask=there, omega=omega)),
        "torch": _both_ways(partial(sdpa, a, b, c, attn_mask=there)),
    }
    with on_threads(1):
        times = best_times(calls, rounds=5, seconds=60.0, in_a_row=1, clock=process_time)
    return [
        Row(
            f"{omega}, 8 sequences, {name}",
            1e3 * times[name],
            1e3 * times["torch"],
            "ms",
            times[name] / times["torch"],
            limit,
        )
        for name, limit in (("packed", 0.5), ("masked", 1.0))
    ]


def _both_ways(attend: Callable[[], Any]) -> Callable[[], None]:
    return lambda: torch.autograd.backward(attend().sum())


def _forward_only(attend: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            attend()

    return run


def training(
    data: list[Tensor], is_causal: bool, where: str = "", threads: int = 1, rounds: int = 5
) -> list[Row]:
    """Forward and backward against `scaled_dot_product_attention`."""
    data = [x.detach().requires_grad_() for x in data]
    _, heads, length, _ = data[0].shape
    cotangent = torch.randn_like(data[2])
    omegas: dict[str, Any] = {name: name for name in _OMEGAS}
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
    with on_threads(threads):
        times = best_times(
            calls, rounds=rounds * threads, seconds=40.0, in_a_row=1, clock=_clock(threads)
        )
    theirs = times.pop("torch")
    where = where or f"{'causal' if is_causal else 'all pairs'}, length {length}"
    return _training_rows(times, theirs, where + _on(threads), is_causal)


def _training_rows(
    times: dict[str, float], theirs: float, where: str, is_causal: bool
) -> list[Row]:
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
    for omega in ("sparsemax", "1.5-entmax", "1.05-entmax", "3-entmax", "3-subsets"):
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


def _isotropic(count: int, heads: int = 2, size: int = 32) -> Any:
    """Random keys of no preferred direction, the hard case."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 1, heads, count, size)
    return keys, values, [torch.randn(1, heads, 1, size) for _ in range(4)]


@torch.no_grad()
def decoding(
    data: tuple[Tensor, Tensor, list[Tensor]], where: str, limit: float, threads: int = 1
) -> list[Row]:
    """Steps of one query each over a cache, against torch's steps over the same keys."""
    keys, values, queries = data
    cache = SparseCache()
    cache.append(keys, values)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def steps(attend: Callable[[Tensor], Any]) -> Callable[[], None]:
        def run() -> None:
            for query in queries:
                attend(query)

        return run

    calls = {"torch": steps(lambda query: sdpa(query, keys, values))}
    for omega in ("sparsemax", "1.5-entmax"):
        for query in queries:
            wanted = F.attention(query, keys, values, omega=omega)
            torch.testing.assert_close(cache.attend(query, omega), wanted, atol=1e-5, rtol=1e-4)
        calls[omega] = steps(partial(cache.attend, omega=omega))
    with on_threads(threads):
        times = best_times(calls, rounds=8, seconds=20.0, in_a_row=2, clock=_clock(threads))
    theirs = times.pop("torch")
    each = 1e3 / len(queries)
    return [
        Row(
            f"{name}, one query over {where}{_on(threads)}",
            each * ours,
            each * theirs,
            "ms",
            ours / theirs,
            limit,
        )
        for name, ours in times.items()
    ]


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


def _training_part(data: Callable[[], list[Tensor]], where: str) -> Callable[[], list[Row]]:
    """Training on some inputs; ``where`` begins with the mask unless there is none."""
    causal = "causal" in where
    return lambda: _with_one_and_two_threads(
        lambda threads: training(data(), causal, where, threads)
    )


def _decoding_part(data: Callable[[], Any], where: str, limit: float) -> Callable[[], list[Row]]:
    return lambda: _with_one_and_two_threads(
        lambda threads: decoding(data(), where, limit, threads)
    )


def _parts() -> dict[str, Callable[[], list[Row]]]:
    parts: dict[str, Callable[[], list[Row]]] = {
        "small-layer": lambda: _with_one_and_two_threads(small_layer),
        "one-query": lambda: _with_one_and_two_threads(one_query),
        "variable-lengths": variable_lengths,
        "memory": memory,
    }
    sources: tuple[tuple[str, str, Callable[[int, int], list[Tensor]]], ...] = (
        ("", "", _random),
        ("trained-", "MiniLM's inputs, ", _trained),
    )
    for prefix, source, data in sources:
        for mask, length, heads in (
            ("causal", 2048, 4),
            ("causal", 4096, 2),
            ("causal", 8192, 1),
            ("all pairs", 4096, 2),
        ):
            where = f"{source}{mask}, length {length}"
            name = f"{prefix}{mask.replace(' ', '-')}-{length}"
            parts[name] = _training_part(partial(data, length, heads), where)
    for count, limit in ((32_768, 0.9), (131_072, 0.6)):
        isotropic, trained = partial(_isotropic, count), partial(_trained_cache, count)
        parts[f"decoding-{count}"] = _decoding_part(isotropic, f"{count} isotropic keys", 1.3)
        parts[f"trained-decoding-{count}"] = _decoding_part(
            trained, f"{count} keys of MiniLM", limit
        )
    return parts


# What `hopfy bench attention/NAME` runs: each takes a minute or two.
ATTENTION_PARTS = _parts()
