"""The best scores first and then what is within reach: the answers of a single sweep, bit for bit."""

from __future__ import annotations

import pytest
import torch

from hopfy.search import ExactIndex, SparseRows
from hopfy.search import _candidate_search as find
from hopfy.search import _short as short


@pytest.fixture
def no_short_cut(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(short, "_FEW", 0)
    return monkeypatch


def _memories(kind: str, dtype: torch.dtype, count: int = 5000) -> torch.Tensor:
    rows = torch.randn(count, 40)
    if kind == "low-rank":
        rows = torch.randn(count, 6) @ torch.randn(6, 40) + 0.05 * rows
    if kind == "copies":
        rows = rows[torch.arange(count) % 37]
    return torch.nn.functional.normalize(rows).to(dtype)


def _same(one: SparseRows, other: SparseRows) -> None:
    assert torch.equal(one.offsets, other.offsets)
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.values, other.values)


def _ask(index: ExactIndex, queries: torch.Tensor, mask: torch.Tensor | None, rank: int, **more):
    reach = torch.linspace(0.0, 0.4, len(queries), dtype=torch.float64)
    metric = more.pop("metric", "inner")
    return index.near_best(queries, reach, rank, metric=metric, mask=mask, **more)


def _queries(memories: torch.Tensor) -> torch.Tensor:
    last = memories[-50:].float() + 0.1 * torch.randn(50, memories.shape[1])
    last[7] = torch.nan
    last[9] = 0.0
    last[11] *= 1e30
    return last.to(torch.float32 if memories.element_size() == 2 else memories.dtype)


@pytest.mark.parametrize("rank", [1, 3, 100])
@pytest.mark.parametrize("kind", ["gaussian", "low-rank", "copies"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_two_passes_find_what_one_sweep_finds(no_short_cut, dtype, kind, rank) -> None:
    memories = _memories(kind, dtype)
    queries = _queries(memories)
    index = ExactIndex(memories, directions=8 if kind == "low-rank" else None)
    index.remove(torch.arange(0, 5000, 9))
    for metric in ("inner", "euclidean"):
        no_short_cut.setattr(find, "_MANY", 1 << 40)
        swept = _ask(index, queries, None, rank, metric=metric)
        no_short_cut.setattr(find, "_MANY", 0)
        _same(_ask(index, queries, None, rank, metric=metric), swept)


@pytest.mark.parametrize("masks", [1, 50])
def test_they_do_with_unknown_coordinates(no_short_cut, masks) -> None:
    memories = _memories("gaussian", torch.float32)
    known = torch.rand(masks, 40) < 0.7
    queries = torch.where(known, _queries(memories), 0.0)
    index = ExactIndex(memories)
    no_short_cut.setattr(find, "_MANY", 1 << 40)
    swept = _ask(index, queries, known, 1)
    no_short_cut.setattr(find, "_MANY", 0)
    _same(_ask(index, queries, known, 1), swept)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("kind", ["gaussian", "low-rank"])
def test_parts_agree_on_the_best_scores_of_the_whole(monkeypatch, kind, quick, rank) -> None:
    if not quick:
        monkeypatch.setattr(short, "_FEW", 0)
    memories = _memories(kind, torch.float64, 900)
    queries = _queries(memories)
    whole = _ask(ExactIndex(memories), queries, None, rank)
    parts = [ExactIndex(part) for part in torch.split(memories, 300)]
    said: list[torch.Tensor] = []

    def listen(best: torch.Tensor) -> torch.Tensor:
        said.append(best)
        return best[:, -1]

    for part in parts:
        _ask(part, queries, None, rank, agree=listen)
    assert [len(each) for each in said] == [50] * 3  # called once by each
    together = torch.cat(said, 1).topk(rank, 1).values[:, -1]
    found = [_ask(part, queries, None, rank, agree=lambda _: together).dense() for part in parts]
    assert torch.equal(torch.cat(found, 1), whole.dense())


def test_a_search_with_more_candidates_than_room_still_finds_them(no_short_cut) -> None:
    memories = _memories("gaussian", torch.float32, 9000)
    index = ExactIndex(memories)
    queries = _queries(memories)
    far = torch.full((50,), 2.0, dtype=torch.float64)
    no_short_cut.setattr(find, "_MANY", 0)
    found = index.near_best(queries, far)
    assert int(found.counts.max()) == 9000
    scores = (queries.double() @ memories.double().mT)[found.row_of_entry, found.indices]
    torch.testing.assert_close(found.values, scores)
