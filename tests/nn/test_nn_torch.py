"""The layers under torch's own machinery: compile, export, autocast, DDP; and the examples."""

from __future__ import annotations

import os
import runpy
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hopfy
from hopfy.nn import (
    Hopfield,
    HopfieldAttention,
    HopfieldEncoderLayer,
    HopfieldLookup,
    HopfieldPooling,
    LearnableAlpha,
    LearnableBeta,
    ShareOfLength,
)

MASK = torch.arange(6) < torch.tensor([6, 3])[:, None]


class Attend(nn.Module):
    """Torch's attention returns a pair and has its own polarity; the tests want one tensor."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attention = HopfieldAttention(8, 2, batch_first=True, **options)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=~mask)[0]


def masked(layer: nn.Module) -> nn.Module:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(x, mask=mask)

    return Masked()


class Encode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = HopfieldEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=~mask)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = HopfieldLookup(8, 2, memories=5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * mask[..., None]


LAYERS = {
    "softmax": lambda: masked(Hopfield(8, 2, omega="softmax", normalize=True)),
    "entmax": lambda: masked(Hopfield(8, 2, omega="1.5-entmax", max_steps=2)),
    "learned": lambda: masked(Hopfield(8, 2, omega=LearnableAlpha(2), beta=LearnableBeta(2))),
    "pooling normmax": lambda: masked(HopfieldPooling(8, 2, queries=2, omega="5-normmax")),
    "pooling subsets": lambda: masked(HopfieldPooling(8, 2, omega="4-subsets")),
    "pooling share": lambda: masked(HopfieldPooling(8, 2, omega=ShareOfLength(0.5))),
    "lookup": Lookup,
    "attention": lambda: Attend(omega="sparsemax"),
    "encoder": Encode,
}


def step(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    layer.zero_grad()
    output = layer(x, MASK)
    output.square().sum().backward()
    return output.detach(), [p.grad.clone() for p in layer.parameters()]


@pytest.mark.parametrize("name", LAYERS)
def test_compiles_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    layer = LAYERS[name]()
    x = torch.randn(2, 6, 8)
    eager, eager_grads = step(layer, x)
    compiled, compiled_grads = step(torch.compile(layer, fullgraph=True, backend="aot_eager"), x)
    torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-4)
    for a, b in zip(compiled_grads, eager_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_compiles_with_inductor() -> None:
    layer = LAYERS["attention"]()
    x = torch.randn(2, 6, 8)
    eager, eager_grads = step(layer, x)
    compiled, compiled_grads = step(torch.compile(layer, fullgraph=True), x)
    torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-4)
    for a, b in zip(compiled_grads, eager_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_exports(name: str) -> None:
    layer = LAYERS[name]().eval()
    x = torch.randn(2, 6, 8)
    program = torch.export.export(layer, (x, MASK))
    for inputs in ((x, MASK), (torch.randn(2, 6, 8), ~MASK)):
        torch.testing.assert_close(program.module()(*inputs), layer(*inputs), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast(name: str) -> None:
    layer = LAYERS[name]()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 6, 8)
    wanted = layer(x, MASK).detach()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x, MASK)
    output.float().square().sum().backward()
    assert (output.float() - wanted).norm() < 0.05 * wanted.norm()
    assert all(p.grad.isfinite().all() and p.grad.dtype is p.dtype for p in layer.parameters())


# -- two processes ----------------------------------------------------------------------------


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        HopfieldEncoderLayer(8, 2, 16, 0.0, batch_first=True, omega=LearnableAlpha(2)),
        HopfieldPooling(8, 2, omega="2-subsets"),
        nn.Linear(8, 1),
    )


def batch() -> torch.Tensor:
    return torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))


def work(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    parallel = nn.parallel.DistributedDataParallel(model())
    parallel(batch()[2 * rank : 2 * rank + 2]).square().mean().backward()
    if rank == 0:
        grads = {name: p.grad for name, p in parallel.module.named_parameters()}
        torch.save(grads, f"{folder}/grads.pt")
    dist.destroy_process_group()


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, str(tmp_path)), nprocs=2)
    alone = model()
    alone(batch()).square().mean().backward()
    together = torch.load(tmp_path / "grads.pt", weights_only=True)
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, msg=name)


# -- examples ---------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["vision_block", "sequence_classifier"])
def test_examples_run_and_learn(name: str) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) < 40
    result = runpy.run_path(str(path))
    assert result["accuracy"] > 0.9
    assert result["zeros"] > 0.1, "the weights should be sparse"


def test_package_lists_the_layers() -> None:
    assert hopfy.nn.Hopfield is Hopfield
    for name in hopfy.nn.__all__:
        assert getattr(hopfy.nn, name).__doc__
