"""`F.varlen_attention`: every sequence as if it were alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.functional import _varlen_attention as module

OMEGAS = ["softmax", "sparsemax", "1.5-entmax", "1.3-entmax", "2-normmax", "3-subsets"]


def packed(lengths_q: list[int], lengths_k: list[int], hq: int = 4, h: int = 2) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((sum(lengths_q), hq, 6), (sum(lengths_k), h, 6), (sum(lengths_k), h, 5))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def edges(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def one_by_one(data: list[Tensor], lengths_q, lengths_k, is_causal: bool, omega) -> Tensor:
    q, k, v = data
    parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    found = []
    for part in parts:
        a, b, c = (x.transpose(0, 1) for x in part)
        m, n = a.shape[1], b.shape[1]
        mask = torch.arange(n) <= torch.arange(m)[:, None] + n - m if is_causal else None
        output, _ = F.attention(a, b, c, mask, enable_gqa=True, omega=omega, return_weights=True)
        found.append(output.transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"),
    [([3, 7, 3, 1], [3, 7, 3, 1]), ([2, 5, 1], [6, 5, 9]), ([4, 2], [2, 5]), ([5], [40])],
)
def test_every_sequence_is_alone(omega: str, is_causal: bool, lengths_q, lengths_k) -> None:
    data = packed(lengths_q, lengths_k)
    got = F.varlen_attention(
        *data,
        edges(lengths_q),
        edges(lengths_k),
        is_causal=is_causal,
        enable_gqa=True,
        omega=omega,
    )
    wanted = one_by_one(data, lengths_q, lengths_k, is_causal, omega)
    torch.testing.assert_close(got, wanted, atol=1e-8, rtol=1e-8)
    cotangent = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad(x, data, cotangent) for x in (got, wanted))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-7)


def test_empty_sequences() -> None:
    data = packed([0, 3, 2], [4, 0, 2])
    got = F.varlen_attention(
        *data, edges([0, 3, 2]), edges([4, 0, 2]), enable_gqa=True, omega="sparsemax"
    )
    assert got.shape == (5, 4, 5)
    assert (got[:3] == 0).all()
    gradients = torch.autograd.grad(got.sum(), data)
    assert all(x.isfinite().all() for x in gradients)
    nothing = torch.zeros(0, 4, 5)
    assert F.varlen_attention(nothing, nothing, nothing, torch.tensor([0])).shape == (0, 4, 5)


def test_an_alpha_for_every_head() -> None:
    data = packed([3, 6], [3, 6])
    alpha = torch.tensor([[1.2], [1.5], [1.7], [2.0]], dtype=torch.float64, requires_grad=True)
    omega = hopfy.Tsallis(alpha)
    got = F.varlen_attention(*data, edges([3, 6]), enable_gqa=True, omega=omega)
    wanted = one_by_one(data, [3, 6], [3, 6], False, omega)
    torch.testing.assert_close(got, wanted)
    ours, theirs = (torch.autograd.grad(x.square().sum(), alpha)[0] for x in (got, wanted))
    torch.testing.assert_close(ours, theirs)


def test_no_score_of_two_sequences_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores that are computed are those within sequences, however long the longest is."""
    computed = []
    inner = module.attend

    def watched(inputs, omega):
        computed.append(torch.Size(inputs.weights_shape).numel())
        return inner(inputs, omega)

    monkeypatch.setattr(module, "attend", watched)
    lengths = [64, 2, 5, 2, 64, 1]
    data = packed(lengths, lengths, 2, 2)
    F.varlen_attention(*data, edges(lengths))
    assert sum(computed) == 2 * sum(n * n for n in lengths)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 3])}, ValueError, "rise from 0 to the number"),
        ({"cu_seqlens_q": torch.tensor([0, 7, 5])}, ValueError, "rise from 0 to the number"),
        ({"cu_seqlens_q": torch.tensor([1, 5])}, ValueError, "rise from 0 to the number"),
        ({"cu_seqlens_q": torch.tensor([0.0, 5.0])}, TypeError, "int32 or int64"),
        ({"cu_seqlens_q": [0, 5]}, TypeError, "got list"),
        ({"cu_seqlens_q": torch.tensor(5)}, ValueError, r"shape \(sequences \+ 1,\)"),
        ({"cu_seqlens_k": torch.tensor([0, 5])}, ValueError, "as many sequences"),
        ({"query": torch.zeros(1, 5, 4, 6)}, ValueError, r"\(tokens, heads, features\)"),
        ({"key": torch.zeros(5, 3, 6)}, ValueError, "enable_gqa"),
    ],
)
def test_bad_input(change: dict, error: type[Exception], message: str) -> None:
    x = torch.zeros(5, 4, 6)
    arguments = {"query": x, "key": x, "value": x, "cu_seqlens_q": torch.tensor([0, 2, 5])}
    with pytest.raises(error, match=message):
        F.varlen_attention(**(arguments | change))
