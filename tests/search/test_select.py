"""The loops of `hopfy._kernels.select` against their definition in plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hopfy
from hopfy._kernels import select
from hopfy._kernels.select import ALL_ALIVE, NO_BIAS, Measure, Search, reference
from hopfy._runtime.compilation import compiled

DTYPES = [torch.float32, torch.float64]
pytestmark = pytest.mark.skipif(compiled("select.cpu") is None, reason="needs numba")


@pytest.mark.parametrize("measure", Measure)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_scores(measure: Measure, dtype: torch.dtype) -> None:
    memories, queries = torch.randn(50, 7, dtype=dtype), torch.randn(9, 7).double()
    wide = torch.cat([memories, torch.full((50, 1), torch.nan, dtype=dtype)], 1)
    rows = wide if measure == Measure.EUCLIDEAN else memories  # it has lifted coordinates
    for known in (torch.rand(9, 7) > 0.4, torch.rand(1, 7) > 0.4):
        search = Search(
            rows=rows.numpy(), bias=NO_BIAS, alive=ALL_ALIVE, queries=queries.numpy(),
            known=known.numpy().astype(np.uint8), measure=int(measure), reach=np.ones(9),
            nudge=0.0, budget=0,
        )  # fmt: skip
        found = torch.empty(9, 50, dtype=torch.float64)
        select.exact_scores(search, found.numpy())
        expected = reference.exact_scores(rows, queries, known, measure)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("rank", "reach"), [(1, 0.5), (3, 1.0), (40, 0.1), (1, 0.0)])
def test_candidates_of_whole_rows(rank: int, reach: float) -> None:
    """Without a nudge a tie with the floor stays; there are none among these scores."""
    scores = torch.randn(20, 90, dtype=torch.float64)
    floors = np.full(20, -np.inf)
    found = select.keep_above_floor(scores.numpy(), rank, np.full(20, reach), floors, 1e-12)
    mask = reference.above_floor(scores, rank, reach + 1e-9)
    for row in range(20):
        kept = found.indices[row, : found.counts[row]]
        assert kept.tolist() == mask[row].nonzero().flatten().tolist()
        assert found.scores[row, : found.counts[row]].tolist() == scores[row, kept].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows(dtype: torch.dtype) -> None:
    table, counts = torch.randn(30, 5, dtype=dtype), torch.tensor([3, 0, 1, 6, 0])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    indices, values = torch.randint(30, (10,)), torch.randn(10, dtype=torch.float64)
    expected = reference.mix(offsets, indices, values, table)
    torch.testing.assert_close(select.mix(offsets, indices, values, table), expected.to(dtype))
    wide = select.mix(offsets, indices, values, table, torch.float64)
    torch.testing.assert_close(wide, expected, rtol=1e-14, atol=1e-14)
    with hopfy.use_backend("reference"):
        plain = select.mix(offsets, indices, values, table)
    torch.testing.assert_close(plain, expected.to(dtype))
