"""Compile the Triton kernels for GPUs that are not here, and tabulate what the binaries need.

    python tests/gpu/cross_compile.py results.jsonl          # what docs/gpu-resources.md lists
    python tests/gpu/cross_compile.py results.jsonl --all    # every combination of conditions (hours)
    python tests/gpu/cross_compile.py results.jsonl --sample # one in twenty of the list
    python tests/gpu/cross_compile.py results.jsonl --table  # write docs/gpu-resources.md

Runs without a GPU: the compilers are part of Triton. The kernels are launched by hopfy's own host
code, with a driver that names another GPU and launches nothing. Registers, spills and shared memory
come from the binaries (``cuobjdump`` for NVIDIA, the metadata of the code object for AMD). Results that
are in the file already, made from the same sources, are not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import hopfy._kernels
from hopfy._kernels.attention import gpu as attention
from hopfy._kernels.attention.types import Family, Visible
from hopfy._kernels.capped import gpu as capped
from hopfy._kernels.entmax import gpu as entmax
from hopfy._kernels.entropic_ksubsets import gpu as entropic
from hopfy._kernels.ksubsets import gpu as ksubsets
from hopfy._kernels.normmax import gpu as normmax
from hopfy._kernels.rows import gpu as rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "gpu-resources.md"

# Limits of one block (workgroup): registers of a thread, of a block, and bytes of shared memory.
LIMITS = {
    "sm_80": (255, 65_536, 166_912),
    "sm_90": (255, 65_536, 232_448),
    "sm_100": (255, 65_536, 232_448),
    "gfx942": (512, 131_072, 65_536),
    "gfx1100": (256, 65_536, 65_536),
}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
NARROW = {"gfx1100": GPUTarget("hip", "gfx1100", 32)}  # an AMD device with warps of 32 threads
# Spilled bytes of a thread that are accepted: NVIDIA's compiler spills a few registers of some kernels
# so that more blocks run at a time, though registers are left. The table shows where. (Seven of the
# 1,988 binaries need more than 32: normmax, queries, heads of 128 on sm_90; entmax of any alpha, 2 x 256
# on sm_80.)
SPILLS = 48


@dataclass(frozen=True)
class Resources:
    """What a binary needs."""

    name: str
    target: str
    warps: int
    registers: int
    spills: int
    shared: int
    sources: str = ""

    def problems(self) -> list[str]:
        """Limits of the target that it exceeds."""
        a_thread, a_block, shared = LIMITS[self.target]
        threads = self.warps * (TARGETS | NARROW)[self.target].warp_size
        found = []
        if self.registers > a_thread or self.registers * threads > a_block:
            found.append(f"{self.registers} registers for {threads} threads")
        if self.spills > SPILLS:
            found.append(f"{self.spills} bytes of spilled registers")
        if self.shared > shared:
            found.append(f"{self.shared} bytes of shared memory")
        return found


# --- what is launched -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """A call of the host code that launches one kernel, or more: ``which`` of them is meant."""

    name: str
    call: Callable[[], object]
    which: int = 0


REGIMES = {
    "entmax": {"1.5": 1.5, "sparsemax": 2.0, "1 to 2": 1.25, "any alpha": 3.0},
    "normmax": {"2": 2.0, "any alpha": 3.0},
    "ksubsets": {"": 3.0},
    "entropic k-subsets": {"": 3.0},
    "capped sparsemax": {"": 0.5, "per entry": torch.tensor(0.5)},
}
MODULES: dict[str, Any] = {
    "entmax": entmax,
    "normmax": normmax,
    "ksubsets": ksubsets,
    "entropic k-subsets": entropic,
    "capped sparsemax": capped,
}


def row_launches(dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")) -> Iterator[Launch]:
    """All launches of the row kernels: maps, regimes, shapes of programs, dtypes."""
    for (map_name, module), dtype in product(MODULES.items(), dtypes):
        for regime, parameter in REGIMES[map_name].items():
            heavy = module is capped or regime == "any alpha"
            for shape in rows.shapes(heavy):
                label = f"{map_name} {regime}".strip()
                yield _row_launch(label, module.solve, parameter, shape, dtype)
        backward = REGIMES[map_name] if module is capped else {"": 3.0}
        for (regime, parameter), shape in product(backward.items(), rows.shapes()):
            label = f"{map_name} backward {regime}".strip()
            call = _Backward(module)
            yield _row_launch(label, call, parameter, shape, dtype)


@dataclass(frozen=True)
class _Backward:
    module: Any

    def __call__(self, scores: Tensor, parameter: Tensor) -> Tensor:
        found: Tensor = self.module.vjp(scores, parameter, scores)
        return found


def _row_launch(label: str, function: Any, parameter: Any, shape: rows.Shape, dtype: str) -> Launch:
    size = shape.B if shape.whole else 131_072
    passes = "" if shape.whole else ", several passes"
    name = f"{label} ({dtype}, {shape.R} x {shape.B}{passes})"

    def call() -> None:
        scores = torch.empty(64, size, dtype=getattr(torch, dtype))
        function(scores, _own(parameter, 64, 1))

    return Launch(name, call)


def _own(parameter: Any, *shape: int) -> Tensor:
    """A number on the host, or one for each row."""
    if isinstance(parameter, Tensor):
        return parameter.expand(shape)
    return torch.tensor(float(parameter), dtype=torch.float64)


CONDITIONS = ("plain", "causal", "mask", "bias", "all")
KERNELS = ("threshold", "output", "queries", "keys")
HEADS = (64, 128, 256)  # sizes that blocks are padded to
OTHER_HEADS = ((72, 100), (256, 16), (1, 1))  # of keys and values: padded


def attention_launches(
    heads: Iterable[int | tuple[int, int]] = HEADS,
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16"),
    conditions: tuple[str, ...] = CONDITIONS,
    dropout: float = 0.0,
) -> Iterator[Launch]:
    """All launches of the attention kernels with heads of these sizes."""
    for kind, head, dtype, condition in product(
        ("entmax", "normmax", "ksubsets"), heads, dtypes, conditions
    ):
        sizes = head if isinstance(head, tuple) else (head, head)
        said = " and ".join(str(size) for size in dict.fromkeys(sizes))
        dropped = ", dropout" if dropout else ""
        for regime, parameter in REGIMES[kind].items():
            call = _Attention(kind, parameter, sizes, dtype, condition, dropout)
            label = f"{kind} {regime}".strip()
            for which, kernel in enumerate(KERNELS):
                about = f"{kernel}, {label}, {condition}{dropped} ({dtype}, head {said})"
                yield Launch(f"attention {about}", call, which)


@dataclass(frozen=True)
class _Attention:
    kind: str
    parameter: Any
    sizes: tuple[int, int]
    dtype: str
    condition: str
    dropout: float

    def __call__(self) -> None:
        inputs, state, output = self.forward()
        attention.backward(state, *inputs, output, wanted=True)

    def forward(self) -> tuple[list[Tensor], attention.State, Tensor]:
        dtype = getattr(torch, self.dtype)
        everything = self.condition in ("all", "one query")
        m, n, (d, e) = 1 if self.condition == "one query" else 256, 256, self.sizes
        shapes = (2, m, d), (2, n, d), (2, n, e)
        inputs = [torch.empty(shape, dtype=dtype) for shape in shapes]
        visible = Visible(m, causal=n - m if everything or self.condition == "causal" else None)
        which = torch.zeros(2, dtype=torch.int64)
        if everything or self.condition == "mask":
            mask = torch.ones(1, m, n, dtype=torch.bool)
            visible = visible._replace(mask=mask, mask_of=which)
        if everything or self.condition == "bias":
            bias = torch.zeros(1, m, n, dtype=dtype)
            visible = visible._replace(bias=bias, bias_of=which)
        family = Family(self.kind, _own(self.parameter, 2, m))
        output, state = attention.forward(*inputs, visible, family, 0.1, self.dropout)
        return inputs, state, output


def dropout_launch() -> Launch:
    """The kernel that writes what dropout keeps, for second derivatives."""

    def call() -> None:
        _, state, _ = _Attention("entmax", 1.5, (16, 16), "float32", "plain", 0.1).forward()
        attention.kept_weights(state, torch.Size((2, 256, 256)), torch.float32)

    return Launch("attention factors of dropout", call, 2)


def listed_launches() -> Iterator[Launch]:
    """What the documentation lists: every configuration that a call can choose.

    Of the row kernels every map, regime, shape of programs and dtype. Of attention every map, regime,
    padded size of heads and dtype, with all conditions and dropout at once, which need most; and, for
    one map, sizes that are padded, and one query, for which Triton compiles a variant of its own.
    """

    def with_all(heads: Iterable[int | tuple[int, int]], what: str, *dtypes: str) -> Any:
        return attention_launches(heads, dtypes, (what,), dropout=0.1)

    yield dropout_launch()
    yield from row_launches()
    for dtype in ("float16", "float32", "bfloat16"):
        yield from with_all(HEADS, "all", dtype)
    more = (*with_all(OTHER_HEADS, "all", "float16"), *with_all((64,), "one query", "float16"))
    yield from (launch for launch in more if "entmax 1.5" in launch.name)


def sampled_launches() -> Iterator[Launch]:
    """One in twenty of what the documentation lists; other sources, another sample."""
    listed = [*listed_launches()]
    seed = sources_of("attention") + sources_of("entropic") + sources_of("capped")
    yield from random.Random(seed).sample(listed, len(listed) // 20)


def few_launches() -> Iterator[Launch]:
    """One of each kernel, for a quick check."""
    chosen = ("entmax 1.5 (", "normmax backward (", "ksubsets (")
    for launch in row_launches(("float16",)):
        if "1 x 1024)" in launch.name and launch.name.startswith(chosen):
            yield launch
    for launch in attention_launches((64,), ("float16",), ("causal",)):
        if "entmax 1.5" in launch.name:
            yield launch


def launch_for_narrow_warps() -> Launch:
    """A kernel with options that only NVIDIA's compiler takes."""
    wide = attention_launches((128,), ("float32",), ("plain",))
    return next(launch for launch in wide if "queries" in launch.name)


def all_launches() -> Iterator[Launch]:
    """Every combination of conditions, too."""
    yield from listed_launches()
    yield from attention_launches()
    yield from attention_launches(dropout=0.1)


# --- compiling ------------------------------------------------------------------------------------


class _Driver:
    """Names a GPU that is not here."""

    def __init__(self, target: str) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return (TARGETS | NARROW)[self.target]

    def get_current_device(self) -> int:
        return list(TARGETS | NARROW).index(self.target)

    def get_current_stream(self, _: int) -> int:
        return 0


@contextmanager
def compiling_for(target: str) -> Iterator[list[Callable[[], Any]]]:
    """Launches are listed, each as a function that compiles its kernel; nothing runs."""
    found: list[Callable[[], Any]] = []
    run = JITFunction.run

    def listed(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.append(lambda: run(self, *args, grid=grid, warmup=True, **options))

    driver.set_active(_Driver(target))
    JITFunction.run = listed
    try:
        yield found
    finally:
        JITFunction.run = run


def compile_for(launch: Launch, target: str) -> Resources:
    """Compile, and read what the binary needs."""
    with compiling_for(target) as found:
        launch.call()
        binary = found[launch.which]()
    read_binary = _of_cubin if "cubin" in binary.asm else _of_code_object
    registers, spills = read_binary(binary)
    return Resources(
        launch.name,
        target,
        binary.metadata.num_warps,
        registers,
        spills,
        binary.metadata.shared,
        sources_of(launch.name),
    )


def _of_cubin(binary: Any) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack, local = (
        int(re.search(rf"{name}:(\d+)", said)[1]) for name in ("REG", "STACK", "LOCAL")
    )
    return registers, stack + local


def _of_code_object(binary: Any) -> tuple[int, int]:
    text = binary.asm["amdgcn"]

    def number(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", text)[1])

    return number("vgpr_count"), number("vgpr_spill_count") + number("private_segment_fixed_size")


@cache
def _digest(folders: tuple[str, ...]) -> str:
    root = Path(hopfy._kernels.__file__).parent
    files = [file for folder in folders for file in sorted((root / folder).glob("gpu*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def sources_of(name: str) -> str:
    """A digest of the files that the kernel comes from."""
    shared = ("threshold", "rows")
    if name.startswith("attention"):
        return _digest((*shared, "attention", "entmax", "normmax", "ksubsets"))
    folders = {"entropic": "entropic_ksubsets", "capped": "capped"}
    own = name.split()[0]
    return _digest((*shared, folders.get(own, own)))


def read(file: Path) -> list[Resources]:
    """What was compiled from the present sources."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [Resources(**json.loads(line)) for line in lines]
    return [r for r in found if r.sources == sources_of(r.name)]


def collect(launches: Iterator[Launch], file: Path) -> list[Resources]:
    """Compile what is not in the file yet, for every target, and add it."""
    done = {(found.name, found.target) for found in read(file)}
    for launch, target in product(launches, TARGETS):
        if (launch.name, target) not in done:
            with file.open("a") as out:
                out.write(json.dumps(asdict(compile_for(launch, target))) + "\n")
    return read(file)


def table(results: list[Resources]) -> str:
    """One line for each launch: registers / spilled bytes / shared bytes on each target."""
    cells = {(found.name, found.target): found for found in results}
    lines = [
        f"| kernel | {' | '.join(TARGETS)} |",
        "|---|" + "---:|" * len(TARGETS),
    ]
    for name in dict.fromkeys(found.name for found in results):
        found = [cells[name, target] for target in TARGETS]
        texts = [f"{r.warps}w: {r.registers} / {r.spills} / {r.shared}" for r in found]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def read_table(text: str) -> list[Resources]:
    """What `table` wrote."""
    found = []
    for line in text.splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == len(TARGETS) and "w: " in cells[0]:
            for target, cell in zip(TARGETS, cells, strict=True):
                numbers = [int(number) for number in re.findall(r"\d+", cell)]
                found.append(Resources(name, target, *numbers))
    return found


def differences(results: list[Resources]) -> list[str]:
    """Where the documentation lists something else than these results."""
    written = {(r.name, r.target): r for r in read_table(DOCUMENT.read_text())}
    pairs = [(replace(r, sources=""), written.get((r.name, r.target))) for r in results]
    return [f"{r} is written as {old}" for r, old in pairs if old is not None and old != r]


_HEADING = """# Resources of the Triton kernels

Written by `tests/gpu/cross_compile.py`, from binaries compiled with Triton {version}; no GPU took
part. Each cell: warps of a block, then registers of a thread / bytes of spilled registers of a thread /
bytes of shared memory of a block. See [the page on GPUs](gpu.md) for what it means.

All {count} configurations that a call can choose, each compiled for all targets; {spilling} of them
spill registers on some target, at most {most} bytes. "Any alpha" is the kernel of tensors of alphas,
and of numbers that have no kernel of their own.

"""


def document(results: list[Resources]) -> str:
    """The page of the documentation, in the order of the list."""
    found = {(r.name, r.target): r for r in results}
    wanted = [(launch.name, target) for launch in listed_launches() for target in TARGETS]
    missing = sum(key not in found for key in wanted)
    if missing:
        raise ValueError(f"expected results for every configuration, got none for {missing}.")
    whole = [found[key] for key in wanted]
    heading = _HEADING.format(
        version=triton.__version__,
        count=len(whole) // len(TARGETS),
        spilling=len({r.name for r in whole if r.spills}) or "none",
        most=max((r.spills for r in whole), default=0),
    )
    return heading + table(whole) + "\n"


if __name__ == "__main__":
    results_file = Path(sys.argv[1])
    if "--table" in sys.argv:
        DOCUMENT.write_text(document(read(results_file)))
    else:
        lists = {"--all": all_launches, "--sample": sampled_launches}
        chosen = next((lists[word] for word in sys.argv if word in lists), listed_launches)
        for line in differences(collect(chosen(), results_file)):
            print(line)
