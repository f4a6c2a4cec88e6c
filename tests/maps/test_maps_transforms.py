"""The maps inside torch.compile, torch.export, torch.func and deterministic mode."""

from __future__ import annotations

import pytest
import torch

from hopfy import functional as F
from judges.registry import MAPS, Map, every_map

NAMES = (
    "softmax",
    "sparsemax",
    "1.5-entmax",
    "5.0-normmax",
    "2-subsets",
    "entropic-2-subsets",
    "0.4-capped",
)
KINDS = [m for m in MAPS if m.name in NAMES]
a_few = pytest.mark.parametrize("map", KINDS, ids=lambda m: m.name)


def loss_of(map: Map, scores: torch.Tensor) -> torch.Tensor:
    return (map(scores * 2, mask=scores > -1.5) * torch.linspace(-1, 1, scores.shape[-1])).sum()


@a_few
@pytest.mark.filterwarnings("ignore")
def test_compile_in_one_graph(map: Map) -> None:
    torch.compiler.reset()
    scores = torch.randn(6, 17)
    eager, compiled = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    loss_of(map, eager).backward()
    program = torch.compile(lambda s: loss_of(map, s), fullgraph=True, backend="aot_eager")
    program(compiled).backward()
    torch.testing.assert_close(compiled.grad, eager.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_compile_to_machine_code() -> None:
    """The default backend, which needs a C++ compiler."""
    torch.compiler.reset()
    for map in KINDS:
        scores = torch.randn(6, 17)
        program = torch.compile(lambda s, map=map: loss_of(map, s), fullgraph=True)
        torch.testing.assert_close(program(scores), loss_of(map, scores))


@pytest.mark.filterwarnings("ignore")
def test_compile_with_a_learned_alpha() -> None:
    torch.compiler.reset()
    scores, alpha = torch.randn(3, 4, 9), torch.tensor([[1.2], [1.5], [2.5]])
    results = []
    for run in (F.entmax, torch.compile(F.entmax, fullgraph=True, backend="aot_eager")):
        s, a = scores.clone().requires_grad_(), alpha.clone().requires_grad_()
        run(s, a).square().sum().backward()
        results += [s.grad, a.grad]
    torch.testing.assert_close(results[2], results[0])
    torch.testing.assert_close(results[3], results[1])


@a_few
@pytest.mark.filterwarnings("ignore")
def test_export(map: Map) -> None:
    class Model(torch.nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            return map(scores)

    scores = torch.randn(4, 8)
    program = torch.export.export(Model(), (scores,))
    torch.testing.assert_close(program.module()(scores), map(scores))


@every_map
def test_vmap(map: Map) -> None:
    scores = torch.randn(5, 4, 9)
    torch.testing.assert_close(torch.vmap(map)(scores), map(scores))
    torch.testing.assert_close(
        torch.vmap(map, in_dims=2, out_dims=1)(scores.movedim(0, 2)), map(scores).movedim(0, 1)
    )


def test_vmap_over_the_parameter() -> None:
    scores, alpha = torch.randn(4, 7), torch.tensor([1.2, 1.7, 2.0, 3.0])
    each = torch.stack([F.entmax(s, a.item()) for s, a in zip(scores, alpha, strict=True)])
    torch.testing.assert_close(torch.vmap(F.entmax)(scores, alpha), each)
    shared = torch.stack([F.entmax(scores, a.item()) for a in alpha])
    torch.testing.assert_close(torch.vmap(F.entmax, in_dims=(None, 0))(scores, alpha), shared)


def test_vmap_over_upper_bounds() -> None:
    scores, upper = torch.randn(4, 7), torch.rand(4, 7) * 0.3 + 0.2
    pairs = zip(scores, upper, strict=True)
    each = torch.stack([F.capped_sparsemax(s, u) for s, u in pairs])
    torch.testing.assert_close(torch.vmap(F.capped_sparsemax)(scores, upper), each)
    shared = torch.stack([F.capped_sparsemax(scores, u) for u in upper])
    mapped = torch.vmap(F.capped_sparsemax, in_dims=(None, 0))(scores, upper)
    torch.testing.assert_close(mapped, shared)


@every_map
def test_transforms_compose(map: Map) -> None:
    """Per-sample gradients, and both modes of the Jacobian."""
    scores = torch.arange(12.0, dtype=torch.float64).reshape(2, 6) * 0.17
    weights = torch.randn(6, dtype=torch.float64)
    each = torch.func.vmap(torch.func.grad(lambda s: (map(s) * weights).sum()))(scores)
    leaf = scores.clone().requires_grad_()
    (map(leaf) * weights).sum().backward()
    torch.testing.assert_close(each, leaf.grad)
    forward = torch.func.jacfwd(map)(scores[0])
    backward = torch.func.jacrev(map)(scores[0])
    torch.testing.assert_close(forward, backward)


def test_deterministic_mode() -> None:
    scores = torch.randn(300, 200)
    torch.use_deterministic_algorithms(True)
    try:
        for map in MAPS:
            first, second = (scores.clone().requires_grad_() for _ in range(2))
            for leaf in (first, second):
                map(leaf).square().sum().backward()
            assert torch.equal(first.grad, second.grad)
    finally:
        torch.use_deterministic_algorithms(False)


def test_other_devices_see_the_reference() -> None:
    """The meta device stands in for an accelerator: no compiled kernel may touch its memory."""
    scores = torch.randn(3, 5, device="meta")
    for map in KINDS:
        assert map(scores).shape == (3, 5)


@pytest.mark.parametrize("transform", ["grad", "grad of grad", "vmap", "jvp"])
@pytest.mark.parametrize(
    "number",
    [F.entmax, F.normmax, F.ksubsets, F.entropic_ksubsets],
    ids=lambda function: function.__name__,
)
def test_numbers_first_seen_inside_a_transform(number, transform: str) -> None:
    """A tensor made there ends with the transform: it must not serve later calls."""
    alpha = 1.5 + (1 + ["grad", "grad of grad", "vmap", "jvp"].index(transform)) / 1024
    scores = torch.randn(3, 5, dtype=torch.float64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return number(x, alpha).square().sum()

    if transform == "vmap":
        torch.func.vmap(loss)(scores)
    elif transform == "jvp":
        torch.func.jvp(loss, (scores,), (scores,))
    elif transform == "grad":
        torch.func.grad(loss)(scores)
    else:
        torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(scores)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: number(x, alpha), (scores,))
    torch.testing.assert_close(
        torch.func.grad(loss)(scores.detach()), torch.autograd.grad(loss(scores), scores)[0]
    )


@every_map
def test_many_cotangents_at_once(map: Map) -> None:
    """``torch.autograd.grad(is_grads_batched=True)``, by which torch computes whole Jacobians."""
    scores = torch.randn(3, 5, dtype=torch.float64)
    whole, rows = (
        torch.autograd.functional.jacobian(map, scores, vectorize=vectorize)
        for vectorize in (True, False)
    )
    torch.testing.assert_close(whole, rows)
