"""The path that never holds all weights equals the plain one, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfy
from hopfy._kernels import attention as kernel
from hopfy.nn import Hopfield, HopfieldAttention, _fused

pytest.importorskip("numba")

OMEGAS = [
    hopfy.Tsallis(2.0),
    hopfy.Tsallis(1.5),
    hopfy.Tsallis(1.2),
    hopfy.Norm(2.0),
    hopfy.Norm(5.0),
    hopfy.Norm(1.4),
]


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "_WORTH_IT", 0)
    monkeypatch.setattr(kernel, "_SPARSE", 1.0)


def inputs(
    *batch: int, m: int = 5, n: int = 9, d: int = 4, e: int = 3, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    shapes = ((*batch, m, d), (*batch, n, d), (*batch, n, e))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def plain(omega: hopfy.Omega, q: torch.Tensor, x: torch.Tensor, v: torch.Tensor, mask=None):
    return omega(q @ x.mT, mask) @ v


def check(omega: hopfy.Omega, data: list[torch.Tensor], mask=None, tol: float = 1e-9) -> None:
    got = _fused.retrieve_sparsely(omega, *data, mask)
    assert got is not None
    wanted = plain(omega, *data, mask)
    torch.testing.assert_close(got, wanted, atol=tol, rtol=tol)
    cotangent = torch.randn_like(wanted)
    ours = torch.autograd.grad(got, data, cotangent)
    theirs = torch.autograd.grad(wanted, data, cotangent)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=100 * tol, rtol=100 * tol)


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 63, 64, 65, 200])
def test_every_length(omega: hopfy.Omega, n: int) -> None:
    check(omega, inputs(2, 3, n=n))


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize(
    "shape", [(2, 1, 1, 9), (2, 1, 5, 9), (2, 3, 5, 9), (1, 1, 5, 9), (5, 9), (9,), (1, 3, 1, 9)]
)
def test_every_mask(omega: hopfy.Omega, shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) > 0.5
    mask.view(-1, 9)[0] = False  # nothing to select
    data = inputs(2, 3)
    check(omega, data, mask)
    output = _fused.retrieve_sparsely(omega, *data, mask)
    nothing = ~mask.expand(2, 3, 5, 9).any(-1)
    assert (output[nothing] == 0).all()
    grad = torch.autograd.grad(output.sum(), data[0])[0]
    assert (grad[nothing] == 0).all()


@pytest.mark.parametrize("block", [1, 40, 200, 10_000])
def test_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(kernel, "_BLOCK", block)
    data = inputs(2, 3, m=7, n=20)
    check(hopfy.Tsallis(1.5), data)
    check(hopfy.Tsallis(1.5), data, torch.rand(2, 3, 7, 20) > 0.3)
    check(hopfy.Tsallis(1.5), data, torch.rand(2, 1, 1, 20) > 0.3)


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("omega", OMEGAS)
def test_every_scale(omega: hopfy.Omega, scale: float) -> None:
    q, x, v = inputs(2, n=40)
    data = [(q.detach() * scale).requires_grad_(), x, v]
    check(omega, data, tol=1e-7)


@pytest.mark.parametrize("omega", OMEGAS[:3])
def test_float32(omega: hopfy.Omega) -> None:
    check(omega, inputs(2, 3, m=50, n=70, dtype=torch.float32), tol=2e-6)


@pytest.mark.parametrize("omega", OMEGAS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_ties_and_integers(omega: hopfy.Omega, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 20))
    row = data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))
    scores = torch.tensor(row, dtype=torch.float64) / 2
    output = _fused.retrieve_sparsely(
        omega, torch.ones(1, 1, 1).double(), scores.view(1, n, 1), torch.eye(n).double()[None], None
    )
    torch.testing.assert_close(output[0, 0], omega(scores), atol=1e-9, rtol=1e-9)


def test_threads_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    data = inputs(4, 2, m=90, n=120)
    omega = hopfy.Tsallis(1.5)
    cotangent = torch.randn(4, 2, 90, 3).double()
    one = _fused.retrieve_sparsely(omega, *data, None)
    one_grads = torch.autograd.grad(one, data, cotangent)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr("hopfy._runtime.threads._WORTH_A_THREAD", 1)
    four = _fused.retrieve_sparsely(omega, *data, None)
    four_grads = torch.autograd.grad(four, data, cotangent)
    assert torch.equal(one, four)
    assert all(torch.equal(a, b) for a, b in zip(one_grads, four_grads, strict=True))


@pytest.mark.parametrize("omega", [hopfy.Tsallis(1.5), hopfy.Tsallis(2.0), hopfy.Norm(3.0)])
def test_differentiable_twice(omega: hopfy.Omega) -> None:
    data = inputs(2, m=2, n=4, d=2, e=2)
    mask = torch.tensor([[True, True, True, False]])

    def function(*data: torch.Tensor) -> torch.Tensor:
        return _fused.retrieve_sparsely(omega, *data, mask)

    assert torch.autograd.gradcheck(function, data)
    assert torch.autograd.gradgradcheck(function, data)


def test_dropout_on_the_support() -> None:
    """With one-hot values the output shows the weights; the rest follows from which were kept."""
    omega, p = hopfy.Tsallis(1.5), 0.3
    q, x, _ = inputs(2, m=60, n=50)
    v = torch.eye(50).double().expand(2, 50, 50).contiguous().requires_grad_()
    output = _fused.retrieve_sparsely(omega, q, x, v, None, p)
    weights = omega(q @ x.mT)
    kept = (output != 0).double() / (1 - p)
    share = (output != 0).sum() / (weights > 0).sum()
    assert abs(share - (1 - p)) < 0.05
    wanted = weights * kept @ v
    torch.testing.assert_close(output, wanted)
    cotangent = torch.randn_like(output)
    ours = torch.autograd.grad(output, (q, x, v), cotangent, create_graph=True)
    plainly = torch.autograd.grad(output, (q, x, v), cotangent, retain_graph=True)
    theirs = torch.autograd.grad(wanted, (q, x, v), cotangent)
    for a, b, c in zip(ours, plainly, theirs, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)
    torch.manual_seed(3)
    first = _fused.retrieve_sparsely(omega, q, x, v, None, p)
    torch.manual_seed(3)
    assert torch.equal(first, _fused.retrieve_sparsely(omega, q, x, v, None, p))


def test_strided_inputs_and_no_gradient() -> None:
    data = [x.detach().transpose(-1, -2).contiguous().transpose(-1, -2) for x in inputs(2, 3)]
    got = _fused.retrieve_sparsely(hopfy.Tsallis(1.5), *data, None)
    torch.testing.assert_close(got, plain(hopfy.Tsallis(1.5), *data))
    assert not got.requires_grad


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_spoils_its_own_row_only(bad: float) -> None:
    layer = Hopfield(omega="1.5-entmax")
    queries, memories = torch.randn(6, 4), torch.randn(9, 4)
    queries[2, 1] = bad
    output = layer(queries, memories)
    spoiled = output.isnan().any(-1)
    assert spoiled.tolist() == [row == 2 for row in range(6)]


def test_nothing_overflows() -> None:
    data = [torch.full((1, 2, 3), 1e30) for _ in range(3)]
    assert _fused.retrieve_sparsely(hopfy.Tsallis(1.5), *data, None) is None


def test_dense_rows_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_SPARSE", 0.25)
    q, x, v = inputs(2, 3, n=40)
    assert _fused.retrieve_sparsely(hopfy.Tsallis(1.5), 1e-3 * q, x, v, None) is None
    assert _fused.retrieve_sparsely(hopfy.Tsallis(1.5), 10 * q, x, v, None) is not None


@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "5-normmax"])
def test_layers_take_it_and_agree(monkeypatch: pytest.MonkeyPatch, omega: str) -> None:
    attention = HopfieldAttention(16, 2, batch_first=True, omega=omega, beta=2.0).double()
    x = torch.randn(3, 40, 16).double()
    padding = torch.arange(40) >= torch.tensor([40, 11, 0])[:, None]
    runs = []
    original = kernel.forward
    monkeypatch.setattr(kernel, "forward", lambda *a, **k: runs.append(1) or original(*a, **k))
    causal = torch.ones(40, 40, dtype=torch.bool).triu(1)
    for call in ({}, {"key_padding_mask": padding}, {"attn_mask": causal}):
        before = len(runs)
        got, _ = attention(x, x, x, need_weights=False, **call)
        assert len(runs) == before + 1
        wanted, _ = attention(x, x, x, need_weights=True, **call)
        assert len(runs) == before + 1
        torch.testing.assert_close(got, wanted)
        ours = torch.autograd.grad(got.square().sum(), list(attention.parameters()))
        theirs = torch.autograd.grad(wanted.square().sum(), list(attention.parameters()))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_needs_less_memory_than_all_weights() -> None:
    """A quarter of what one dense tensor of weights would take is more than enough."""
    queries, memories, values = (
        torch.randn(2, 256, 8, requires_grad=True),
        torch.randn(2, 4096, 8, requires_grad=True),
        torch.randn(2, 4096, 8, requires_grad=True),
    )
    family = kernel.entmax_family(1.5)
    flat = [x.detach() for x in (queries, memories, values)]
    _, support = kernel.forward(*flat, None, family)
    held = sum(part.numel() * part.element_size() for part in support)
    assert held < 2 * 256 * 4096 * 4 / 4
    weights = hopfy.Tsallis(1.5)(queries @ memories.mT)
    assert support.weights.numel() == pytest.approx((weights > 0).sum().item(), rel=1e-3)
