"""Compile the Triton kernels for GPUs that are not here, and tabulate what the binaries need.

    python tests/gpu/cross_compile.py results.jsonl          # what docs/gpu-resources.md lists
    python tests/gpu/cross_compile.py results.jsonl --all    # every option of every kernel (hours)
    python tests/gpu/cross_compile.py results.jsonl --table  # write docs/gpu-resources.md

Runs without a GPU: the compilers are part of Triton. Registers, spills and shared memory come from the
binaries (``cuobjdump`` for NVIDIA, the metadata of the code object for AMD). Results that are in the
file already are not compiled again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hopfy._kernels import row_launch
from hopfy._kernels.attention import gpu as attention
from hopfy._kernels.entmax import gpu as entmax
from hopfy._kernels.ksubsets import gpu as ksubsets
from hopfy._kernels.normmax import gpu as normmax

DOCUMENT = Path(__file__).parents[2] / "docs" / "gpu-resources.md"

# Limits of one block (workgroup): registers of a thread, of a block, and bytes of shared memory.
LIMITS = {
    "sm_80": (255, 65_536, 166_912),
    "sm_90": (255, 65_536, 232_448),
    "sm_100": (255, 65_536, 232_448),
    "gfx942": (512, 131_072, 65_536),
}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Spilled bytes of a thread that are accepted: a few registers moved to the L1 cache. The table shows
# where that happens.
SPILLS = 512
DTYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}


@dataclass(frozen=True)
class Configuration:
    """One kernel as it can be launched."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int]


@dataclass(frozen=True)
class Resources:
    """What a binary needs."""

    name: str
    target: str
    warps: int
    registers: int
    spills: int
    shared: int

    def problems(self) -> list[str]:
        """Limits of the target that it exceeds."""
        a_thread, a_block, shared = LIMITS[self.target]
        threads = self.warps * TARGETS[self.target].warp_size
        found = []
        if self.registers > a_thread or self.registers * threads > a_block:
            found.append(f"{self.registers} registers for {threads} threads")
        if self.spills > SPILLS:
            found.append(f"{self.spills} bytes of spilled registers")
        if self.shared > shared:
            found.append(f"{self.shared} bytes of shared memory")
        return found


def row_configurations(dtypes: tuple[str, ...] = tuple(DTYPES)) -> Iterator[Configuration]:
    """All launches of the row kernels."""
    for name, module in (("entmax", entmax), ("normmax", normmax)):
        for regime, number in module.REGIMES.items():
            constants = {"PER_ROW": regime == "per row", "REGIME": number}
            heavy = regime in module.HEAVY
            yield from _row(
                f"{name} {regime}", module.forward_kernel, dtypes, heavy, 2, 1, constants
            )
        for per_row in (False, True):
            label = f"{name} backward" + (" per row" if per_row else "")
            constants = {"PER_ROW": per_row}
            yield from _row(label, module.backward_kernel, dtypes, False, 3, 1, constants)
    for per_row in (False, True):
        label = "ksubsets" + (" per row" if per_row else "")
        constants = {"PER_ROW": per_row}
        yield from _row(label, ksubsets.forward_kernel, dtypes, False, 2, 2, constants)
    yield from _row("ksubsets backward", ksubsets.backward_kernel, dtypes, False, 3, 0, {})


def _row(
    name: str,
    kernel: Any,
    dtypes: tuple[str, ...],
    heavy: bool,
    tensors: int,
    parameters: int,
    constants: dict[str, Any],
) -> Iterator[Configuration]:
    """A row kernel takes tensors, parameters, their stride, counts, and constants."""
    number = "*fp32" if constants.get("PER_ROW") else "fp32"
    for shape, dtype in product(row_launch.shapes(heavy), dtypes):
        fixed = constants | {"R": shape.R, "B": shape.B, "WHOLE": shape.whole}
        types = [DTYPES[dtype]] * tensors + [number] * parameters
        types += ["i32"] * (bool(parameters) + 2) + ["constexpr"] * len(fixed)
        signature = dict(zip(kernel.arg_names, types, strict=True))
        label = (
            f"{name} ({dtype}, {shape.R} x {shape.B}{'' if shape.whole else ', several passes'})"
        )
        yield Configuration(label, kernel, signature, fixed, {"num_warps": shape.warps})


# Which conditions a call has: arguments that are None are compiled away.
_ABSENT = {
    "plain": ("mask", "mask_of", "anywhere", "bias", "bias_of", "offset"),
    "causal": ("mask", "mask_of", "anywhere", "bias", "bias_of"),
    "mask": ("bias", "bias_of", "offset"),
    "bias": ("mask", "mask_of", "anywhere", "offset"),
    "all": (),
}
_OTHERS = {
    "a": "fp32",
    "scale": "fp32",
    "mask": "*i8",
    "mask_of": "*i64",
    "anywhere": "*i8",
    "bias_of": "*i64",
    "rows": "*fp32",
    "sums": "*fp32",
    "in_parameter": "*fp32",
    "order": "*i32",
    "counts": "*i32",
    "used": "*i8",
}
_KERNELS = ("threshold", "output", "queries", "keys")


def attention_configurations(
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256),
    dtypes: tuple[str, ...] = tuple(DTYPES),
    masks: tuple[str, ...] = tuple(_ABSENT),
) -> Iterator[Configuration]:
    """All launches of the attention kernels with keys and values of one size."""
    for (kind, name, module), size, dtype, visible in product(
        ((0, "entmax", entmax), (1, "normmax", normmax)), sizes, dtypes, masks
    ):
        blocks = attention.blocks_for(size, size, getattr(torch, dtype))
        for regime, number in module.REGIMES.items():
            constants = {
                "KIND": kind,
                "REGIME": number,
                "PER_ROW": regime == "per row",
                "UPCAST": False,
                "D": size,
                "E": size,
                **dict(zip(("BM", "BN", "BD", "BE"), blocks[:4], strict=True)),
            }
            for part in _KERNELS:
                kernel = getattr(attention, f"{part}_kernel")
                fixed = constants | ({"WANTED": True} if part == "queries" else {})
                fixed |= dict.fromkeys(_ABSENT[visible])
                label = f"attention {part}, {name} {regime}, {visible} ({dtype}, head {size})"
                types = {
                    name: "constexpr" if name in fixed else _type(name, dtype, constants)
                    for name in kernel.arg_names
                }
                yield Configuration(
                    label, kernel, types, fixed, {"num_warps": blocks.warps, "num_stages": 1}
                )


def _type(name: str, dtype: str, constants: dict[str, Any]) -> str:
    if name == "a" and constants["PER_ROW"]:
        return "*fp32"
    if name in ("queries", "keys", "values", "output", "cotangent", "bias"):
        return DTYPES[dtype]
    if name.startswith("in_") and name != "in_parameter":
        return DTYPES[dtype]
    return _OTHERS.get(name, "i32")


def compile_for(configuration: Configuration, target: str) -> Resources:
    """Compile, and read what the binary needs."""
    source = ASTSource(
        configuration.kernel,
        signature=configuration.types,
        constexprs=configuration.constants,
        # Torch's memory is aligned; a kernel launched on an unaligned view is compiled anew.
        attrs={
            (number,): [["tt.divisibility", 16]]
            for number, type_ in enumerate(configuration.types.values())
            if type_.startswith("*")
        },
    )
    binary = triton.compile(source, target=TARGETS[target], options=configuration.options)
    read = _of_cubin if "cubin" in binary.asm else _of_code_object
    registers, spills = read(binary)
    return Resources(
        configuration.name,
        target,
        configuration.options["num_warps"],
        registers,
        spills,
        binary.metadata.shared,
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


def listed_configurations() -> Iterator[Configuration]:
    """What the documentation lists: all regimes, dtypes and block shapes, all conditions at once."""
    attention_parts = [
        *attention_configurations((64,), ("float16", "float32"), ("all",)),
        *attention_configurations((128, 256), ("float16", "float32"), ("all",)),
        *attention_configurations((64,), ("bfloat16",), ("all",)),
    ]
    yield from (c for c in attention_parts if "entmax 1.5" in c.name)
    rows = list(row_configurations())
    yield from (c for c in rows if "float32, 1 x 1024" in c.name)
    yield from (c for c in rows if "float32" in c.name and "1 x 1024" not in c.name)
    yield from (c for c in rows if "float32" not in c.name and "1 x 1024" in c.name)
    chosen = ("entmax per row", "normmax 2", "normmax per row")
    yield from (c for c in attention_parts if any(name in c.name for name in chosen))


def few_configurations() -> Iterator[Configuration]:
    """One of each kernel, for a quick check."""
    chosen = ("entmax 1.5 (", "normmax backward (", "ksubsets (")
    for configuration in row_configurations(("float16",)):
        if "1 x 2048" in configuration.name and configuration.name.startswith(chosen):
            yield configuration
    for configuration in attention_configurations((64,), ("float16",), ("causal",)):
        if "entmax 1.5" in configuration.name:
            yield configuration


def all_configurations() -> Iterator[Configuration]:
    yield from row_configurations()
    yield from attention_configurations()


def read(file: Path) -> list[Resources]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [Resources(**json.loads(line)) for line in lines]


def collect(configurations: Iterator[Configuration], file: Path) -> list[Resources]:
    """Compile what is not in the file yet, for every target, and add it."""
    done = {(found.name, found.target) for found in read(file)}
    for configuration, target in product(configurations, TARGETS):
        if (configuration.name, target) not in done:
            with file.open("a") as out:
                out.write(json.dumps(asdict(compile_for(configuration, target))) + "\n")
    return read(file)


def table(results: list[Resources]) -> str:
    """One line for each configuration: registers / spilled bytes / shared bytes on each target."""
    names = dict.fromkeys(found.name for found in results)
    cells = {(found.name, found.target): found for found in results}
    lines = [
        f"| kernel | warps | {' | '.join(TARGETS)} |",
        "|---|---:|" + "---:|" * len(TARGETS),
    ]
    for name in names:
        found = [cells.get((name, target)) for target in TARGETS]
        texts = ["" if r is None else f"{r.registers} / {r.spills} / {r.shared}" for r in found]
        warps = next(r.warps for r in found if r is not None)
        lines.append(f"| {name} | {warps} | {' | '.join(texts)} |")
    return "\n".join(lines)


_HEADING = """# Resources of the Triton kernels

Written by `tests/gpu/cross_compile.py`, from binaries compiled with Triton {version}; no GPU took
part. Each cell: registers of a thread / bytes of spilled registers of a thread / bytes of shared
memory of a block. See [the page on GPUs](gpu.md) for what it means.

"""

if __name__ == "__main__":
    results_file = Path(sys.argv[1])
    if "--table" in sys.argv:
        heading = _HEADING.format(version=triton.__version__)
        DOCUMENT.write_text(heading + table(read(results_file)) + "\n")
    else:
        every = "--all" in sys.argv
        collect(all_configurations() if every else listed_configurations(), results_file)
