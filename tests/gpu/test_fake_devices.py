"""What can be said about CUDA without a CUDA device: operators, tracing, compilation of kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

import hopfy
from hopfy import functional as F
from hopfy._runtime.backends import backend_for, launching_on

MAPS = [
    ("entmax", 1.5),
    ("normmax", 2.0),
    ("ksubsets", 3.0),
    ("entropic_ksubsets", 3.0),
    ("capped_sparsemax", 0.5),
]
every_map = pytest.mark.parametrize(("name", "parameter"), MAPS, ids=lambda x: str(x))


@every_map
def test_operators_keep_torchs_rules(name: str, parameter: float) -> None:
    """Schema, fake tensors, autograd registration, tracing with dynamic shapes."""
    operator = getattr(torch.ops.hopfy, name).default
    scores = torch.randn(3, 8, requires_grad=True)
    torch.library.opcheck(operator, (scores, torch.tensor(parameter)))


@pytest.mark.parametrize("device", ["cuda", "xpu"])
@every_map
def test_fake_tensors_keep_shape_dtype_and_device(name: str, parameter: float, device: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            scores = torch.empty(4, 7, device=device, dtype=dtype)
            weights = getattr(torch.ops.hopfy, name)(scores, torch.tensor(parameter))
            assert (weights.shape, weights.dtype) == (scores.shape, dtype)
            assert weights.device.type == device


@pytest.mark.parametrize(("device", "module"), [("cuda", torch.cuda), ("xpu", torch.xpu)])
def test_kernels_are_launched_on_the_device_of_their_tensors(
    device: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(module, "device_of", lambda tensor: asked.append(tensor) or nullcontext())
    with FakeTensorMode():
        tensor = torch.empty(3, device=device)
        with launching_on(tensor):
            assert asked == [tensor]


class _Module(torch.nn.Module):
    def __init__(self, name: str, parameter: float) -> None:
        super().__init__()
        self.name, self.parameter = name, parameter

    def forward(self, scores: Tensor) -> Tensor:
        return getattr(F, self.name)(scores, self.parameter)


@every_map
def test_export_on_fake_cuda_tensors(name: str, parameter: float) -> None:
    """The operator stays whole in the graph."""
    with FakeTensorMode():
        scores = torch.empty(4, 7, device="cuda")
    program = torch.export.export(_Module(name, parameter), (scores,), strict=False)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert f"hopfy.{name}.default" in targets


def _compiled_graphs(function: Any, *inputs: Tensor) -> list[list[str]]:
    """The operators of the graphs that `torch.compile` hands to its code generator."""
    graphs: list[list[str]] = []

    def generate(module: torch.fx.GraphModule, _: Any) -> Any:
        nodes = module.graph.nodes
        graphs.append([str(node.target) for node in nodes if node.op == "call_function"])
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    torch.compile(function, backend=aot_autograd(fw_compiler=generate), fullgraph=True)(*inputs)
    return graphs


@every_map
def test_compile_on_fake_cuda_tensors(name: str, parameter: float) -> None:
    """One graph, with our operator in it: all that happens before code is generated."""
    with FakeTensorMode():
        scores = torch.empty(4, 7, device="cuda", dtype=torch.float16)
        (graph,) = _compiled_graphs(_Module(name, parameter), scores)
    assert f"hopfy.{name}.default" in graph


ATTENTION: dict[str, dict[str, Any]] = {
    "entmax": {"omega": "1.5-entmax", "is_causal": True},
    "normmax": {"omega": "2-normmax", "scale": 0.3},
    "k-subsets": {"omega": hopfy.SparseMAP(hopfy.structures.KSubsets(3))},
    "dropout": {"dropout_p": 0.25},
    "alpha per head": {"omega": hopfy.Tsallis(torch.tensor([[1.2], [1.7]]))},
}


def _qkv(**options: Any) -> list[Tensor]:
    return [torch.empty(1, 2, 9, 8, **options) for _ in range(3)]


@pytest.mark.parametrize("name", ATTENTION)
def test_compile_attention_on_fake_cuda_tensors(name: str) -> None:
    """One graph with one operator, whatever the options; dropout too."""
    omega = ATTENTION[name].get("omega")
    for parameter in omega.tensors().values() if isinstance(omega, hopfy.Omega) else ():
        assert parameter.device.type == "cpu"  # copied to the device when the graph runs
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = _qkv(device="cuda", dtype=torch.bfloat16)
        mask = torch.empty(9, 9, device="cuda", dtype=torch.bool)
        (graph,) = _compiled_graphs(lambda *x: F.attention(*x, **ATTENTION[name]), q, k, v, mask)
    assert graph.count("hopfy.attention.default") == 1


@pytest.mark.parametrize("name", ["normmax", "k-subsets", "dropout"])
def test_export_of_attention_needs_no_operator_of_ours(name: str) -> None:
    """Exported programs run without hopfy: plain torch operations, on the device of the inputs.

    (A causal mask indexes a tensor, which torch without CUDA refuses even for fake tensors.)
    """

    class Attention(torch.nn.Module):
        def forward(self, *x: Tensor) -> Tensor:
            return F.attention(*x, **ATTENTION[name])

    with FakeTensorMode():
        inputs = (*_qkv(device="cuda"),)
    program = torch.export.export(Attention(), inputs, strict=False)
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    (found,) = output.args[0]
    assert found.meta["val"].device.type == "cuda"
    assert not any("hopfy.attention" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("kind", ["entmax", "normmax", "ksubsets"])
def test_the_operator_of_attention_keeps_torchs_rules(kind: str) -> None:
    q, k, v = (torch.randn(2, n, 8, requires_grad=True) for n in (6, 9, 9))
    number = torch.tensor(2.0, dtype=torch.float64)
    mask, which = torch.rand(1, 6, 9) > 0.3, torch.zeros(2, dtype=torch.int64)
    rest = (number, mask, which, None, None, None, 1, 6, kind, 0.3, 0.0)
    torch.library.opcheck(torch.ops.hopfy.attention.default, (q, k, v, *rest))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_code_generator_is_where_compilation_ends_without_cuda() -> None:
    """Inductor asks for the device itself. If this fails, the tests above can go further."""
    torch._dynamo.reset()
    with FakeTensorMode(), pytest.raises(Exception, match="not linked with support for cuda"):
        torch.compile(_Module("entmax", 1.5), fullgraph=True)(torch.empty(4, 7, device="cuda"))


def test_fake_gradients_of_attention_keep_shape_and_device() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.empty(2, n, 8, device="cuda", dtype=torch.float16) for n in (6, 9, 9))
        alpha = torch.tensor(1.5, dtype=torch.float64)
        rest = (alpha, None, None, None, None, None, 0, 6, "entmax", 0.3, 0.0)
        output = torch.ops.hopfy.attention(q, k, v, *rest)
        found = torch.ops.hopfy.attention_backward(output, q, k, v, *rest, True)
    for gradient, x in zip(found, (q, k, v), strict=False):
        assert (gradient.shape, gradient.dtype, gradient.device) == (x.shape, x.dtype, x.device)


def test_no_backend_reads_what_has_no_memory() -> None:
    with FakeTensorMode():
        assert backend_for(torch.empty(3, device="cuda")) == "reference"


def test_importing_hopfy_does_not_import_triton() -> None:
    program = "import sys, hopfy; assert 'triton' not in sys.modules"
    source = Path(hopfy.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(source)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)


_FEW = """
import json, sys
from dataclasses import asdict
sys.path.insert(0, sys.argv[1])
import cross_compile as cc
found = [cc.compile_for(c, "sm_90") for c in cc.few_launches()]
found += [cc.compile_for(cc.launch_for_narrow_warps(), "gfx1100")]
print(json.dumps([asdict(r) | {"problems": r.problems()} for r in found]))
"""


def _python(program: str, *arguments: str) -> str:
    source = Path(hopfy.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=5400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_kernels_compile_for_a_gpu_that_is_not_here() -> None:
    pytest.importorskip("triton")
    found = json.loads(_python(_FEW, str(Path(__file__).parent)))
    assert len(found) == 8
    assert [r for r in found if r["problems"]] == []


_TABLE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import cross_compile as cc
found = cc.read_table(cc.DOCUMENT.read_text())
print(json.dumps({
    "compiled": sorted({r.name for r in found}),
    "listed": sorted(launch.name for launch in cc.listed_launches()),
    "cells": len(found),
    "problems": [str(r) for r in found if r.problems()],
}))
"""


def test_the_table_has_every_configuration() -> None:
    """Each for four targets, within their limits."""
    pytest.importorskip("triton")
    said = json.loads(_python(_TABLE, str(Path(__file__).parent)))
    assert said["compiled"] == said["listed"]
    assert said["cells"] == 4 * len(said["listed"])
    assert said["problems"] == []


_COMPARED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import cross_compile as cc
found = cc.collect(getattr(cc, sys.argv[2])(), Path(sys.argv[3]))
print(len(found), [(r, r.problems()) for r in found if r.problems()], cc.differences(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launches", ["sampled_launches", "listed_launches"])
def test_every_listed_configuration_fits_every_target(launches: str, tmp_path: Path) -> None:
    """And needs what the table says: one in twenty, then all of them (hours on one core)."""
    pytest.importorskip("triton")
    said = _python(_COMPARED, str(Path(__file__).parent), launches, str(tmp_path / "found.jsonl"))
    assert said.strip().endswith(" [] []"), said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_bench_says_that_it_needs_a_gpu() -> None:
    from hopfy.bench import SUBJECTS

    with pytest.raises(RuntimeError, match="expected a GPU"):
        SUBJECTS["gpu"](lambda _: None)


def test_the_bench_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, in tiny sizes on the CPU: other packages that work, differ, or fail."""
    from hopfy.bench import _gpu

    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape[2] == 2  # heads come third
        return (q + k) * v

    def splash(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = True) -> Tensor:
        assert not is_causal
        raise NotImplementedError

    fakes = {
        "flash_attn": SimpleNamespace(flash_attn_func=flash),
        "adasplash": SimpleNamespace(adasplash=splash),
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    sizes = _gpu.Sizes((32,), entries=128, tokens=32, heads=2, head_size=8, repeat=1)
    said: list[str] = []
    rows = _gpu.bench_on(torch.device("cpu"), sizes, said.append)
    assert [row.operation for row in rows][-2:] == ["attention 1.5-entmax", "attention sparsemax"]
    assert len(said) == len(rows) == 7
    table = _gpu.table_of(rows)
    assert table.count("\n|") == 9
    for other in ("softmax", "SDPA", "flash_attn", "adasplash failed (NotImplementedError)"):
        assert other in table


def test_the_bench_refuses_wrong_answers() -> None:
    from hopfy.bench._gpu import check

    assert check(torch.ones(3), torch.ones(3).double(), 2e-6, "ones") == 0
    for wrong in (torch.tensor(1.0 + 1e-5), torch.tensor(float("nan"))):
        with pytest.raises(RuntimeError, match="expected at most 2e-06"):
            check(wrong, torch.tensor(1.0), 2e-6, "one")
