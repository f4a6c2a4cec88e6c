"""Exact sparse decoding: the weights are those of attention over all keys, always."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.nn import LearnableAlpha, SparseCache
from judges import attention as judge

pytest.importorskip("numba")

OMEGAS = {
    "sparsemax": ("entmax", 2.0),
    "1.5-entmax": ("entmax", 1.5),
    "1.2-entmax": ("entmax", 1.2),
    "1.03-entmax": ("entmax", 1.03),
    "2-normmax": ("normmax", 2.0),
    "5-normmax": ("normmax", 5.0),
    "1.2-normmax": ("normmax", 1.2),
}
every_omega = pytest.mark.parametrize("omega", OMEGAS)


def filled(keys: Tensor, values: Tensor, pieces: int = 1) -> SparseCache:
    cache = SparseCache()
    for k, v in zip(keys.chunk(pieces, 2), values.chunk(pieces, 2), strict=True):
        cache.append(k, v)
    return cache


def compare(keys: Tensor, values: Tensor, query: Tensor, omega: str, scale: float) -> SparseCache:
    kind, parameter = OMEGAS[omega]
    shape = (*query.shape[:3], keys.shape[2])
    output, weights = judge.attention(
        *(x.double().numpy() for x in (query, keys, values)),
        kind=kind,
        parameter=np.full(shape[1], parameter),
        allowed=np.ones(shape, bool),
        bias=np.zeros(shape),
        scale=scale,
    )
    cache = filled(keys, values, pieces=3 if keys.shape[2] > 2 else 1)
    got = cache.attend(query, omega, scale=scale)
    torch.testing.assert_close(got.double(), torch.from_numpy(output), atol=1e-5, rtol=1e-5)
    assert cache.stats().selected >= (weights > 1e-9).sum()
    return cache


def hard_keys(kind: str, n: int, d: int) -> Tensor:
    keys = torch.randn(1, 2, n, d, dtype=torch.float64)
    if kind == "copies":
        keys = keys[:, :, torch.randint(0, max(1, n // 8), (n,))]
    elif kind == "near ties":
        keys = keys[:, :, :1] + 1e-4 * keys
    elif kind == "outliers":
        keys[..., 0] *= 1e3  # one feature takes all of the code's digits
    elif kind == "common direction":
        keys = keys + 50
    elif kind == "zeros":
        keys[:, :, ::2] = 0
    elif kind == "tiny":
        keys = keys * 1e-20
    return keys


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(
        ["random", "copies", "near ties", "outliers", "common direction", "zeros", "tiny"]
    ),
    omega=st.sampled_from(list(OMEGAS)),
    n=st.integers(1, 300),
    d=st.integers(1, 40),
    repeat=st.integers(1, 3),
    sharpness=st.sampled_from([1e-3, 0.3, 1.0, 10.0, 300.0]),
    single=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_to_attention_over_all_keys(
    kind, omega, n, d, repeat, sharpness, single, seed
) -> None:
    torch.manual_seed(seed)
    keys, values = hard_keys(kind, n, d), torch.randn(1, 2, n, 3, dtype=torch.float64)
    query = torch.randn(1, 2 * repeat, 1, d, dtype=torch.float64)
    if single:
        keys, values, query = keys.float(), values.float(), query.float()
    compare(keys, values, query, omega, sharpness)


@every_omega
def test_the_support_is_the_dense_one(omega: str) -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 1, 1, 5000, 16, dtype=torch.float64)
    query = 2 * torch.randn(1, 4, 1, 16, dtype=torch.float64)
    cache = filled(keys, values)
    options = {"omega": omega, "enable_gqa": True, "return_weights": True}
    weights = F.attention(query, keys, values, **options)[1]
    cache.attend(query, omega)
    stats = cache.stats()
    assert stats.selected == int((weights > 0).sum())
    assert stats.keys == 4 * 5000
    if omega in ("sparsemax", "2-normmax", "1.5-entmax"):
        assert stats.share_read < 0.1


def test_keys_are_appended_one_by_one() -> None:
    keys, values = torch.randn(2, 2, 3, 150, 8)
    cache = SparseCache()
    query = torch.randn(2, 3, 1, 8)
    for i in range(150):
        cache.append(keys[:, :, i : i + 1], values[:, :, i : i + 1])
        if i % 37 == 0:
            wanted = F.attention(query, keys[:, :, : i + 1], values[:, :, : i + 1])
            torch.testing.assert_close(cache.attend(query), wanted)
    assert len(cache) == 150
    assert torch.equal(cache.keys, keys)
    assert torch.equal(cache.values, values)


def test_masks_and_several_queries() -> None:
    keys, values = torch.randn(2, 2, 2, 90, 8)
    cache = filled(keys, values)
    query = torch.randn(2, 2, 1, 8)
    left = (torch.arange(90) >= torch.tensor([0, 40])[:, None])[:, None, None]
    holes = torch.rand(2, 1, 1, 90) > 0.5
    nothing = torch.zeros(2, 1, 1, 90, dtype=torch.bool)
    for mask in (left, holes, nothing):
        wanted = F.attention(query, keys, values, mask)
        torch.testing.assert_close(cache.attend(query, mask=mask), wanted)
    many = torch.randn(2, 2, 5, 8)
    torch.testing.assert_close(cache.attend(many), F.attention(many, keys, values))


@pytest.mark.parametrize("omega", ["softmax", "3-entmax", "2-subsets", LearnableAlpha(2)])
def test_other_maps_read_all_keys(omega) -> None:
    keys, values = torch.randn(2, 1, 2, 70, 8)
    query = torch.randn(1, 2, 1, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            filled(keys, values).attend(query, omega), F.attention(query, keys, values, omega=omega)
        )


def test_half_precision() -> None:
    keys, values = torch.randn(2, 1, 2, 70, 8).bfloat16()
    query = torch.randn(1, 2, 1, 8).bfloat16()
    torch.testing.assert_close(filled(keys, values).attend(query), F.attention(query, keys, values))


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), "batch, heads, new, features"),
        (torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 4, 4), "one value for each key"),
        (torch.zeros(1, 3, 3, 4), torch.zeros(1, 3, 3, 4), "like those in the cache"),
        (torch.full((1, 2, 3, 4), torch.nan), torch.zeros(1, 2, 3, 4), "finite keys"),
    ],
)
def test_bad_input(keys: Tensor, values: Tensor, message: str) -> None:
    cache = filled(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    with pytest.raises(ValueError, match=message):
        cache.append(keys, values)
    assert len(cache) == 3
    with pytest.raises(ValueError, match="empty"):
        SparseCache().attend(torch.zeros(1, 1, 1, 4))
    assert "length=3" in repr(cache)
    assert hopfy.nn.SparseCache is SparseCache


@pytest.mark.parametrize(
    ("query", "options", "error", "message"),
    [
        (torch.zeros(2, 2, 1, 16), {}, ValueError, "8 features"),
        (torch.zeros(2, 2, 1, 4), {}, ValueError, "8 features"),
        (torch.zeros(2, 3, 1, 8), {}, ValueError, "multiple of 2 heads"),
        (torch.zeros(2, 1, 1, 8), {}, ValueError, "multiple of 2 heads"),
        (torch.zeros(3, 2, 1, 8), {}, ValueError, "batch 2"),
        (torch.zeros(2, 1, 8), {}, ValueError, "queries, features"),
        ([1.0], {}, ValueError, "list"),
        (torch.zeros(2, 2, 1, 8, dtype=torch.int64), {}, TypeError, "floating"),
        (torch.zeros(2, 2, 1, 8, dtype=torch.float64), {}, TypeError, "one dtype"),
        (torch.zeros(2, 2, 1, 8, device="meta"), {}, TypeError, "device"),
        (torch.zeros(2, 2, 1, 8), {"scale": float("nan")}, ValueError, "finite"),
        (torch.zeros(2, 2, 1, 8), {"mask": torch.ones(5, 1, 1, 90) > 0}, ValueError, "broadcasts"),
        (torch.zeros(2, 2, 1, 8), {"mask": torch.ones(2, 1, 1, 80) > 0}, ValueError, "broadcasts"),
    ],
)
def test_bad_queries(query: object, options: dict, error: type, message: str) -> None:
    """None of them may reach the compiled step, which trusts the shapes."""
    cache = filled(torch.zeros(2, 2, 90, 8), torch.zeros(2, 2, 90, 8))
    with pytest.raises(error, match=message):
        cache.attend(query, "sparsemax", **options)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_query_that_is_not_finite_affects_only_its_row(value: float) -> None:
    keys, values = torch.randn(2, 1, 2, 90, 8)
    query = torch.randn(1, 2, 1, 8)
    query[0, 1, 0, 3] = value
    found = filled(keys, values).attend(query, "sparsemax")
    wanted = F.attention(query, keys, values, omega="sparsemax")
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert found[0, 0].isfinite().all()
    assert not found[0, 1].isfinite().any()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copies_grow_on_their_own(copied):
    torch.manual_seed(5)
    keys, more, query = torch.randn(1, 2, 100, 8), torch.randn(1, 2, 40, 8), torch.randn(1, 2, 1, 8)
    cache = SparseCache()
    cache.append(keys, keys)
    other = copied(cache)
    assert torch.equal(other.attend(query), cache.attend(query))
    other.append(more, more)
    both = torch.cat([keys, more], 2)
    wanted = F.attention(query, both, both, omega="1.5-entmax")
    torch.testing.assert_close(other.attend(query), wanted)
    assert len(cache) == 100
    torch.testing.assert_close(
        cache.attend(query), F.attention(query, keys, keys, omega="1.5-entmax")
    )
