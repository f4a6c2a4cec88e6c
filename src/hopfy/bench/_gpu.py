"""The Triton kernels on a GPU: checked against float64 on the device first, then timed.

Without a GPU there is nothing to time, and the subject says so.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import hopfy
from hopfy import functional as F

__all__ = ["GpuRow", "Sizes", "bench_gpu", "bench_on", "check", "table_of"]

# Largest differences from float64, beside answers of size 1. The products of attention add up many
# rounded numbers before the map, so it is allowed more than a map of given scores.
_TOLERANCES = {
    "map": {torch.float32: 2e-6, torch.float16: 2**-11},
    "attention": {torch.float32: 2e-5, torch.float16: 4e-3},
}
_GRADIENTS = 8  # how much more gradients may differ
_DEVICES = ("cuda", "xpu")  # an AMD device calls itself cuda, too
_ALPHAS = {"1.5-entmax": 1.5, "sparsemax": 2.0}  # of the maps in attention

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    lengths: tuple[int, ...] = (512, 2048, 8192, 32_768, 131_072)
    entries: int = 1 << 26  # of scores in one call of a map
    tokens: int = 1 << 15  # of queries in one call of attention
    heads: int = 8
    head_size: int = 64
    repeat: int = 10


@dataclass(frozen=True)
class GpuRow:
    """One operation at one length: our milliseconds, others' time as a multiple of ours."""

    operation: str
    length: int
    forward_ms: float
    forward_backward_ms: float
    selected: float  # share of the weights that are not zero
    error: float
    over: str  # "softmax 0.80 / 0.75": forward, forward and backward; or why nothing was measured


def bench_gpu(progress: Callable[[str], None] = lambda _: None) -> list[GpuRow]:
    """Measure maps and attention over lengths 512 to 131,072; wrong answers are not timed."""
    device = torch.accelerator.current_accelerator()
    if device is None or device.type not in _DEVICES:
        raise RuntimeError(
            "expected a GPU that torch and Triton can use (CUDA, ROCm or XPU), "
            f"found {'none' if device is None else device.type}; the kernels have been checked "
            "without one, see docs/gpu.md."
        )
    if find_spec("triton") is None:
        raise RuntimeError(
            "expected Triton, whose kernels are measured, found none; pip install 'hopfy[gpu]'."
        )
    return bench_on(device, Sizes(), progress)


def bench_on(device: torch.device, sizes: Sizes, progress: Callable[[str], None]) -> list[GpuRow]:
    """The same on any device, in any sizes.

    What fails, gives wrong answers or needs more memory than there is gets a row that says so, and the
    others are measured.
    """
    rows = []
    for length in sizes.lengths:
        for name, call in _maps().items():
            progress(f"{name}, rows of {length}")
            rows.append(_row(name, length, partial(_bench_map, name, call, length, device, sizes)))
        for name in _ALPHAS:
            progress(f"{name} attention, {length} keys")
            measure = partial(_bench_attention, name, length, device, sizes)
            rows.append(_row(f"attention {name}", length, measure))
    return rows


def _row(operation: str, length: int, measure: Callable[[], GpuRow]) -> GpuRow:
    """The row that is measured, or one that says why there is none."""
    try:
        return measure()
    except _WrongAnswerError as error:
        note = f"WRONG: {error}"
    except torch.OutOfMemoryError:
        note = "skipped: out of memory"
    except Exception as error:
        note = f"failed: {_said(error)}"
    _free_memory()
    return GpuRow(operation, length, math.nan, math.nan, math.nan, math.nan, note)


def _said(error: Exception) -> str:
    """The kind of an error and its first line, at most 100 characters of it, without bars."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__} {lines[0][:100]}".strip().replace("|", "/")


def _free_memory() -> None:
    """What a failed call held would be missing in the next."""
    gc.collect()
    there = torch.accelerator.current_accelerator()
    if there is not None and there.type in _DEVICES:
        _functions_of(there).empty_cache()


class _WrongAnswerError(RuntimeError):
    """An answer of this device differs from float64."""


def _maps() -> dict[str, Call]:
    return {
        "sparsemax": F.sparsemax,
        "entmax 1.5": partial(F.entmax, alpha=1.5),
        "entmax 1.25": partial(F.entmax, alpha=1.25),
        "normmax 2": partial(F.normmax, alpha=2.0),
        "ksubsets 8": partial(F.ksubsets, k=8),
    }


def check(ours: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    """The largest difference; an error if it is above the tolerance."""
    error = (ours.double() - expected.double()).abs().max().item()
    if not error <= tolerance:
        raise _WrongAnswerError(
            f"{what}: expected at most {tolerance:g} between this device and float64, got {error:g}; "
            "please report the device and the versions of torch and triton."
        )
    return error


def _checked(
    call: Call, inputs: tuple[Tensor, ...], expected: Tensor, kind: str, what: str
) -> float:
    """The largest difference in float32, forward; gradients and float16 are checked, too."""
    exact = tuple(x.double() for x in inputs)
    with hopfy.use_backend("reference"):
        cotangent = torch.randn_like(expected)
        if kind == "map":
            cotangent *= _has_one_gradient(call, exact[0], cotangent)
        cotangent = cotangent.half().double()  # the same in every dtype
        judges = _gradients(call, exact, cotangent)
    errors = []
    for dtype, tolerance in _TOLERANCES[kind].items():
        given = tuple(x.to(dtype) for x in inputs)
        label = f"{what}, {str(dtype).removeprefix('torch.')}"
        errors.append(check(call(*given), expected, tolerance * _size(expected), label))
        ours = _gradients(call, given, cotangent.to(dtype))
        for gradient, judge in zip(ours, judges, strict=True):
            limit = _GRADIENTS * tolerance * _size(judge)
            check(gradient, judge, limit, f"{label}, gradient")
    return errors[0]


def _has_one_gradient(call: Call, scores: Tensor, cotangent: Tensor) -> Tensor:
    """Which rows (M, 1) are away from kinks, where rounding chooses one of several gradients.

    Random float16 scores lie on a grid, and thresholds, means of scores, often exactly on one of them.
    At a kink the gradient changes if all scores are scaled a little.
    """
    here, *beside = (
        _gradients(call, (scores * factor,), cotangent)[0] for factor in (1.0, 1 - 1e-5, 1 + 1e-5)
    )
    change = torch.stack([(there - here).abs() for there in beside]).amax(0)
    return change.amax(-1, keepdim=True) <= 1e-3 * here.abs().amax(-1, keepdim=True)


def _gradients(call: Call, inputs: tuple[Tensor, ...], cotangent: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(call(*leaves), leaves, cotangent)


def _size(expected: Tensor) -> float:
    return max(1.0, expected.abs().max().item())


def _bench_map(name: str, call: Call, length: int, device: torch.device, sizes: Sizes) -> GpuRow:
    few = torch.randn(16, length, device=device, dtype=torch.float16)  # exact in every dtype
    with hopfy.use_backend("reference"):
        expected = call(few.double())
    error = _checked(call, (few,), expected, "map", f"{name}, rows of {length}")
    scores = torch.randn(
        max(1, sizes.entries // length), length, device=device, dtype=torch.float16
    )
    softmax = partial(torch.softmax, dim=-1)
    ours, theirs = (_times(which, sizes.repeat, scores) for which in (call, softmax))
    return GpuRow(
        name,
        length,
        *ours,
        selected=(expected > 0).double().mean().item(),
        error=error,
        over=_ratios("softmax", theirs, ours),
    )


def _bench_attention(omega: str, length: int, device: torch.device, sizes: Sizes) -> GpuRow:
    heads = max(1, min(sizes.heads, sizes.tokens * sizes.heads // length))
    shape = (1, heads, length, sizes.head_size)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.float16) * 2 for _ in range(3))
    attention = partial(F.attention, omega=omega)
    part = q[:, :1, :16], k[:, :1], v[:, :1]
    with hopfy.use_backend("reference"):
        few, keys, values = (x.double() for x in part)
        expected, weights = F.attention(few, keys, values, omega=omega, return_weights=True)
    what = f"{omega} attention, {length} keys"
    error = _checked(attention, part, expected, "attention", what)
    ours = _times(attention, sizes.repeat, q, k, v)
    others = {
        "SDPA": torch.nn.functional.scaled_dot_product_attention,
        **_other_packages(_ALPHAS[omega]),
    }
    ratios = [_compared(other, call, ours, sizes.repeat, q, k, v) for other, call in others.items()]
    return GpuRow(
        f"attention {omega}",
        length,
        *ours,
        selected=(weights > 0).double().mean().item(),
        error=error,
        over=", ".join(ratios),
    )


def _other_packages(alpha: float) -> dict[str, Call]:
    """Attention of other packages, where they are installed."""
    found: dict[str, Call] = {}
    for package, function in (("flash_attn", "flash_attn_func"), ("adasplash", "adasplash")):
        try:
            call = getattr(importlib.import_module(package), function)
        except (ImportError, AttributeError):
            continue
        if package == "flash_attn":  # heads come third there
            found[package] = lambda q, k, v, call=call: call(
                *(x.transpose(1, 2) for x in (q, k, v))
            ).transpose(1, 2)
        else:
            wanted = {"alpha": alpha, "is_causal": False}
            known = inspect.signature(call).parameters
            found[package] = partial(call, **{k: v for k, v in wanted.items() if k in known})
    return found


def _compared(
    name: str, call: Call, ours: tuple[float, float], repeat: int, *inputs: Tensor
) -> str:
    """Another package's time over ours; what it does not serve is no reason to stop."""
    try:
        theirs = _times(call, repeat, *inputs)
    except Exception as error:
        return f"{name} failed ({type(error).__name__})"
    return _ratios(name, theirs, ours)


def table_of(rows: list[GpuRow]) -> str:
    """The rows as a table to paste into an issue, under the device and the versions."""
    there = torch.accelerator.current_accelerator()
    device = "no GPU"
    if there is not None and there.type in _DEVICES:
        device = _functions_of(there).get_device_name()
    triton = importlib.import_module("triton").__version__ if find_spec("triton") else "missing"
    lines = [
        f"{device}, torch {torch.__version__}, triton {triton}, hopfy {hopfy.__version__}",
        "",
        "| operation | length | forward ms | both ms | selected | error | others' time / ours |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    return "\n".join(lines + [_line_of(row) for row in rows])


def _line_of(row: GpuRow) -> str:
    """A line of the table; what was not measured is a dash."""
    times = (f"{ms:.3g}" for ms in (row.forward_ms, row.forward_backward_ms))
    cells = *times, f"{row.selected:.2%}", f"{row.error:.1e}"
    numbers = " | ".join("-" if cell.startswith("nan") else cell for cell in cells)
    return f"| {row.operation} | {row.length:,} | {numbers} | {row.over} |"


def _ratios(name: str, theirs: tuple[float, float], ours: tuple[float, float]) -> str:
    return f"{name} {theirs[0] / ours[0]:.2f} / {theirs[1] / ours[1]:.2f}"


def _times(call: Call, repeat: int, *inputs: Tensor) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward: the median of several runs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    cotangent = torch.randn_like(call(*inputs))

    def both() -> None:
        torch.autograd.grad(call(*leaves), leaves, cotangent)

    device = inputs[0].device
    return _median(lambda: call(*inputs), device, repeat), _median(both, device, repeat)


def _median(run: Callable[[], Any], device: torch.device, repeat: int) -> float:
    for _ in range(min(3, repeat)):
        run()
    on_gpu = device.type in _DEVICES
    times = sorted(_by_events(run, device) if on_gpu else _by_clock(run) for _ in range(repeat))
    return times[len(times) // 2]


def _functions_of(device: torch.device) -> Any:
    """`torch.cuda` or `torch.xpu`."""
    return getattr(torch, device.type)


def _by_events(run: Callable[[], Any], device: torch.device) -> float:
    event = _functions_of(device).Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    run()
    end.record()
    _functions_of(device).synchronize()
    return float(begin.elapsed_time(end))


def _by_clock(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)
