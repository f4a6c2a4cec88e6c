"""The store: what goes in comes out, in order, under its id, whatever grows or goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfy import AssociativeMemory, _growing, theory
from hopfy._growing import Growing
from hopfy.memory import _separations
from hopfy.memory._equal_lengths import lifted, radius_for, squared_lengths
from hopfy.memory._separations import Separations
from hopfy.memory._store import Contents, Store


def everything(memory: AssociativeMemory) -> tuple[list[int], torch.Tensor]:
    chunks = list(memory.chunks(3))
    ids = [one for chunk in chunks for one in chunk.ids.tolist()]
    return ids, torch.cat([chunk.patterns for chunk in chunks])


def test_patterns_come_back_bit_for_bit_and_in_order():
    memory = AssociativeMemory()
    first, second = torch.randn(5, 4), torch.randn(7, 4)
    assert memory.add(first).tolist() == [0, 1, 2, 3, 4]
    assert memory.add(second).tolist() == [5, 6, 7, 8, 9, 10, 11]
    ids, patterns = everything(memory)
    assert ids == list(range(12)) == memory.ids.tolist()
    assert torch.equal(patterns, torch.cat([first, second]))
    assert len(memory) == 12
    assert 11 in memory
    assert 12 not in memory
    assert np.int64(11) in memory
    assert "11" not in memory
    assert 11 not in AssociativeMemory()


def test_removed_patterns_are_gone_and_their_ids_are_not_reused():
    memory = AssociativeMemory(beta=1.0)
    patterns = torch.randn(6, 3)
    memory.add(patterns)
    memory.remove([1, 4])
    assert len(memory) == 4
    assert 1 not in memory
    ids, left = everything(memory)
    assert ids == [0, 2, 3, 5]
    assert torch.equal(left, patterns[[0, 2, 3, 5]])
    assert memory.add(patterns[1]).tolist() == [6]
    memory.remove(6)
    assert len(memory) == 4


def test_an_id_may_be_given_again_after_its_removal():
    memory = AssociativeMemory(beta=1.0)
    memory.add(torch.eye(3), ids=[7, 3, 100])
    memory.remove([3])
    memory.add(torch.ones(1, 3), ids=[3])
    assert memory.ids.tolist() == [7, 100, 3]
    assert memory.add(torch.zeros(1, 3)).tolist() == [101]


def test_removing_an_unknown_id_removes_nothing():
    memory = AssociativeMemory()
    memory.add(torch.eye(3))
    with pytest.raises(KeyError, match="nothing was removed"):
        memory.remove([0, 9])
    assert len(memory) == 3
    with pytest.raises(KeyError, match="empty"):
        AssociativeMemory().remove([0])


def test_all_patterns_may_go_and_others_come():
    memory = AssociativeMemory()
    memory.add(torch.eye(3), values=[1, 2, 3])
    memory.remove(memory.ids)
    assert len(memory) == 0
    assert list(memory.chunks()) == []
    with pytest.raises(ValueError, match="empty one; add some first"):
        memory.recall(torch.zeros(3))
    memory.add(torch.eye(3)[:1], values=[9])
    assert memory.recall(torch.ones(3)).values.tolist() == 9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 4), st.just("remove")), max_size=12), st.booleans())
def test_any_story_of_adding_and_removing_keeps_the_same_list(story, lift):
    memory = AssociativeMemory(compare="distance" if lift else "dot")
    expected: dict[int, list[float]] = {}
    generator = np.random.default_rng(len(story))
    for event in story:
        if event == "remove":
            chosen = [one for one in expected if one % 3 == 0]
            if chosen:
                memory.remove(chosen)
            for one in chosen:
                del expected[one]
        else:
            rows = generator.normal(size=(event, 2)) * 10.0 ** generator.integers(-2, 3)
            for one, row in zip(memory.add(rows).tolist(), rows.tolist(), strict=True):
                expected[one] = row
        assert len(memory) == len(expected)
    found = {
        one: row
        for chunk in memory.chunks(2)
        for one, row in zip(chunk.ids.tolist(), chunk.patterns.tolist(), strict=True)
    }
    assert found == expected
    assert list(found) == list(expected)


def test_one_by_one_additions_copy_a_linear_number_of_rows(monkeypatch):
    copied = []
    empty = torch.empty

    def counting(shape, **options):
        copied.append(shape[0])
        return empty(shape, **options)

    monkeypatch.setattr(_growing.torch, "empty", counting)
    growing, rows = Growing(empty(0, 2)), torch.arange(2000.0).reshape(1000, 2)
    for used in range(1000):
        growing = growing.plus(used, 1, [rows[used : used + 1]])
    assert torch.equal(growing.rows(1000), rows)
    assert sum(copied) <= 4 * 1000


def test_the_sphere_grows_a_logarithmic_number_of_times():
    radius, seen = 0.0, set()
    for length in range(1, 1001):
        radius = radius_for(torch.tensor([float(length) ** 2]), radius)
        seen.add(radius)
        assert radius >= length
    assert len(seen) <= 22


def test_earlier_snapshots_never_change():
    for lift in (0.0, None):
        width = 3 if lift is not None else 2
        store = Store(
            Contents(torch.empty(0, width), torch.zeros(0, dtype=torch.int64), None, lift)
        )
        states = []
        for step in range(30):
            store.add(torch.randn(2, 2) * (step + 1), None, None)
            if step % 5 == 4:
                store.remove(store.snapshot().contents.ids[1:2])
            contents = store.snapshot().contents
            states.append((contents, contents.rows.clone(), contents.ids.clone()))
        for contents, rows, ids in states:
            assert torch.equal(contents.rows, rows)
            assert torch.equal(contents.ids, ids)


def test_an_interrupted_addition_leaves_the_store_as_it_was(monkeypatch):
    memory = AssociativeMemory(beta=1.0)
    memory.add(torch.eye(3), ids=[1, 2, 3])
    before = everything(memory)

    def interrupt(*_):
        raise KeyboardInterrupt

    plus = Growing.plus
    monkeypatch.setattr(Growing, "plus", interrupt)
    with pytest.raises(KeyboardInterrupt):
        memory.add(torch.ones(2, 3), ids=[8, 9])
    monkeypatch.setattr(Growing, "plus", plus)
    assert everything(memory)[0] == before[0]
    assert torch.equal(everything(memory)[1], before[1])
    memory.add(torch.ones(2, 3), ids=[8, 9])
    assert memory.ids.tolist() == [1, 2, 3, 8, 9]


# ---------------------------------------------------------------------- separations


def brute_separations(rows: torch.Tensor) -> torch.Tensor:
    gram = rows.double() @ rows.double().T
    own = gram.diagonal().clone()
    return own - gram.fill_diagonal_(-torch.inf).amax(1) if len(rows) > 1 else own + torch.inf


@pytest.mark.parametrize("tile", [3, 2048])
def test_separations_follow_additions_and_removals(monkeypatch, tile):
    monkeypatch.setattr(_separations, "_TILE", tile)
    empty = Contents(torch.empty(0, 5), torch.zeros(0, dtype=torch.int64), None, 0.0)
    store = Store(empty)
    for count in (1, 3, 12, 1, 0, 7):
        store.add(torch.randn(count, 4) * (1 + count), None, None)
        for _ in range(2):
            snapshot = store.snapshot()
            found = snapshot.separations()
            rows = snapshot.contents.rows
            torch.testing.assert_close(found.delta, brute_separations(rows), rtol=1e-9, atol=1e-9)
            if len(rows) > 1:
                judge = theory.separations(rows)
                torch.testing.assert_close(found.delta, judge.value, rtol=1e-9, atol=1e-9)
            if len(rows) > 2:
                store.remove(snapshot.contents.ids[::5])


def test_only_new_pairs_are_scored(monkeypatch):
    scored = []
    search = _separations._search

    def counting(rows, part, *others, **options):
        scored.append(part.numel())
        search(rows, part, *others, **options)

    monkeypatch.setattr(_separations, "_search", counting)
    rows = torch.randn(50, 4)
    known = Separations.none().extended(rows[:40])
    scored.clear()
    known = known.extended(rows)
    assert sum(scored) == 10
    torch.testing.assert_close(known.delta, brute_separations(rows))


def test_a_rival_hidden_by_rounding_is_found():
    # In float32 products of this length are off by about 0.1; the separations are 0.005.
    base = torch.full((1, 400), 60.0)
    rows = torch.cat([base, base, base])
    rows[1, 0] += 0.1
    rows[2, 1] += 0.07
    lengths = squared_lengths(rows)
    lift = lifted(rows, lengths, radius_for(lengths, 0.0))
    found = Separations.none().extended(lift)
    torch.testing.assert_close(found.delta, brute_separations(lift), rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------------- the lift


def test_lifted_patterns_have_one_length_and_the_promised_separation():
    patterns = torch.randn(40, 6, dtype=torch.float64) * torch.rand(40, 1, dtype=torch.float64)
    radius = radius_for(squared_lengths(patterns), 0.0)
    rows = lifted(patterns, squared_lengths(patterns), radius)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((40,), radius, dtype=torch.float64))
    distances = torch.cdist(patterns, patterns).fill_diagonal_(torch.inf).amin(1)
    assert bool((brute_separations(rows) >= distances**2 / 2 - 1e-12).all())


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("patterns", "error", "words"),
    [
        (torch.zeros(2, 4), ValueError, "memory's 3 coordinates, got 4"),
        (torch.zeros(2, 2, 3), ValueError, r"shape \(M, D\)"),
        (torch.tensor(1.0), ValueError, r"shape \(M, D\)"),
        (torch.tensor([[1.0, torch.nan, 0.0]]), ValueError, "NaN or infinity in row 0"),
        ([[1.0, 2.0, 3.0], [1.0, np.inf, 0.0]], ValueError, "NaN or infinity in row 1"),
        ([[1e300, 0.0, 0.0]], ValueError, "NaN or infinity in row 0"),
        ([[1e19, 1e19, 0.0]], ValueError, "squared lengths fit torch.float32"),
        ([["a", "b", "c"]], TypeError, "real numbers"),
        ([[1j, 0, 0]], TypeError, "real numbers"),
        (torch.zeros(1, 3, dtype=torch.complex64), TypeError, "real numbers"),
        ([[1.0, 2.0, 3.0], [1.0]], ValueError, "ragged"),
        (None, TypeError, "real numbers"),
    ],
)
def test_bad_patterns_are_one_message_and_change_nothing(patterns, error, words):
    memory = AssociativeMemory()
    memory.add(torch.eye(3))
    with pytest.raises(error, match=words) as caught:
        memory.add(patterns)
    assert "\n" not in str(caught.value)
    assert len(memory) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ids": [0]}, ValueError, r"got \[0\] again"),
        ({"ids": [5, 5]}, ValueError, "one id for each of the 1"),
        ({"ids": [-1]}, ValueError, "ids from 0"),
        ({"ids": [2**63 - 1]}, ValueError, "ids from 0"),
        ({"ids": np.array([2**63], dtype=np.uint64)}, ValueError, "below 2"),
        ({"ids": [0.5]}, TypeError, "integers"),
        ({"ids": [True]}, TypeError, "integers"),
        ({"ids": [[1]]}, ValueError, "one dimension"),
        ({"values": [1.0]}, ValueError, "without values"),
    ],
)
def test_bad_ids_and_values_are_one_message(options, error, words):
    memory = AssociativeMemory()
    memory.add(torch.eye(3))
    with pytest.raises(error, match=words):
        memory.add(torch.ones(1, 3), **options)
    assert len(memory) == 3


def test_lengths_beyond_float64_are_one_message():
    with pytest.raises(ValueError, match=r"squared lengths fit torch.float64"):
        AssociativeMemory().add(np.full((2, 3), 1e200))


def test_repeated_ids_in_one_call_are_refused():
    memory = AssociativeMemory()
    with pytest.raises(ValueError, match=r"each once, got \[4\] again"):
        memory.add(torch.eye(3), ids=[4, 5, 4])
    assert len(memory) == 0


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (None, ValueError, "with values"),
        ([1, 2], ValueError, "one value for each of the 1 patterns"),
        ([[1, 2]], ValueError, r"values of shape \(\) each"),
        ([0.5], TypeError, "do not mix"),
        (["cat"], TypeError, "as stored, got text values"),
    ],
)
def test_values_must_fit_those_that_are_stored(values, error, words):
    memory = AssociativeMemory()
    memory.add(torch.eye(3), values=[1, 2, 3])
    with pytest.raises(error, match=words):
        memory.add(torch.ones(1, 3), values=values)
    assert len(memory) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"beta": 0.0}, ValueError, "beta > 0"),
        ({"beta": -1}, ValueError, "beta > 0"),
        ({"beta": float("nan")}, ValueError, "beta > 0"),
        ({"beta": float("inf")}, ValueError, "finite"),
        ({"beta": "high"}, ValueError, "'auto' or a number"),
        ({"beta": None}, TypeError, "beta"),
        ({"omega": "softmax"}, ValueError, "no margin"),
        ({"omega": "3-subsets"}, TypeError, "single patterns"),
        ({"omega": "hardmax"}, ValueError, "name such as"),
        ({"compare": "cosine"}, ValueError, "'distance' or 'dot'"),
    ],
)
def test_bad_settings_are_one_message(options, error, words):
    with pytest.raises(error, match=words):
        AssociativeMemory(**options)


def test_the_dtype_is_that_of_the_first_patterns():
    memory = AssociativeMemory()
    memory.add(np.eye(3))
    assert everything(memory)[1].dtype is torch.float64
    memory.fit(np.eye(3, dtype=np.int32))
    assert everything(memory)[1].dtype is torch.float32
    memory.add(np.eye(3, dtype=bool)[::-1])
    memory.add(np.asfortranarray(np.eye(3, dtype=">f8")))
    memory.add(np.broadcast_to(np.float16(2), (2, 3)))
    memory.add([1, 2, 3])
    assert len(memory) == 12


def test_what_comes_out_is_a_copy():
    memory = AssociativeMemory()
    given = torch.eye(3)
    memory.add(given, values=torch.ones(3))
    given.zero_()
    for chunk in memory.chunks():
        chunk.patterns.zero_()
        chunk.ids.zero_()
        chunk.values.zero_()
    memory.ids.zero_()
    answer = memory.recall(torch.eye(3))
    answer.patterns.zero_()
    again = memory.recall(torch.eye(3))
    assert torch.equal(again.patterns, torch.eye(3))
    assert again.ids.tolist() == [0, 1, 2]
    assert again.values.tolist() == [1, 1, 1]


def test_chunks_have_the_size_that_was_asked_for():
    memory = AssociativeMemory()
    memory.add(torch.randn(10, 2))
    assert [len(chunk.ids) for chunk in memory.chunks(4)] == [4, 4, 2]
    for wrong in (0, -1, 2.5):
        with pytest.raises(ValueError, match="size"):
            memory.chunks(wrong)


@pytest.mark.parametrize("compare", ["distance", "dot"])
@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "5-normmax"])
def test_recall_after_a_removal_is_that_of_the_rows_that_are_left(omega, compare):
    """Removed rows stay in place until many are gone; a compacted memory answers the same."""
    torch.manual_seed(3)
    patterns = torch.randn(80, 9)
    patterns[40:] = patterns[:40] + 0.01 * torch.randn(40, 9)
    patterns[7] *= 3  # the longest
    cues = torch.cat([patterns[:12], patterns[::7] + 0.2])
    known = torch.rand(cues.shape) < 0.7
    for beta in (0.1, 2.0, 1e3):
        memory = AssociativeMemory(omega, beta=beta, compare=compare)
        memory.add(patterns, values=torch.arange(80))
        memory.recall(cues)
        memory.remove([7, 0, 41, 45])
        rows = memory._store.contents.rows
        assert len(memory) == 76
        before = [memory.recall(cues), memory.recall(cues, mask=known), memory.recall(cues[:1])]
        near = memory.neighbors(cues, k=5)
        assert memory._store.contents.rows.data_ptr() == rows.data_ptr()
        memory._store.snapshot()  # moves the rows together
        assert memory._store.contents.rows.shape[0] == 76
        after = [memory.recall(cues), memory.recall(cues, mask=known), memory.recall(cues[:1])]
        for one, two in zip(before, after, strict=True):
            for field in ("patterns", "ids", "values", "certified", "size", "steps"):
                assert torch.equal(getattr(one, field), getattr(two, field)), field
            assert one.kind == two.kind
        assert torch.equal(near.ids, memory.neighbors(cues, k=5).ids)


def test_removals_between_recalls_do_not_copy_the_rows(monkeypatch):
    from hopfy.memory._store import Store

    copies = []
    compact = Store._compact
    monkeypatch.setattr(Store, "_compact", lambda store: (copies.append(1), compact(store)))
    memory = AssociativeMemory(beta=1.0).fit(torch.randn(300, 4))
    for _ in range(60):
        memory.remove(memory.add(torch.randn(2, 4)))
        memory.recall(torch.randn(1, 4))
    assert len(memory) == 300
    assert len(copies) <= 3  # once for about a hundred removed rows


def test_weights_that_did_not_fit_are_those_of_the_rows_that_are_left():
    memory = AssociativeMemory("sparsemax", beta=1e-3, compare="dot", scratch=2000)
    memory.add(torch.randn(60, 5))
    memory.remove([3, 4])
    answer = memory.recall(torch.randn(40, 5))
    ids, weights = answer.weights(2)
    assert not set(ids.tolist()) & {3, 4}
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_automatic_beta_follows_removals_without_a_copy(compare):
    """Separations after removals are those of the patterns that are left, at the same places."""
    generator = torch.Generator().manual_seed(4)
    patterns = torch.randn(300, 8, generator=generator, dtype=torch.float64)
    patterns = 3 * patterns / patterns.norm(dim=1, keepdim=True)
    patterns[250:] = patterns[:50] + 1e-2 * torch.randn(50, 8, generator=generator).double()
    memory = AssociativeMemory(compare=compare)
    memory.add(patterns)
    cues = patterns[60:70] + 0.02
    memory.recall(cues)
    store, left = memory._store, torch.arange(300)
    rows = store.contents.rows.data_ptr()
    for gone in ([250], [251, 252, 3], list(range(253, 290)), [7]):
        memory.remove(gone)
        left = left[~torch.isin(left, torch.tensor(gone))]
        answer, state = memory.recall(cues), memory._snapshot_for_recall()
        assert store.contents.rows.data_ptr() == rows
        products = store.contents.rows[left] @ store.contents.rows[left].T
        own = products.diagonal().clone()
        products.fill_diagonal_(-torch.inf)
        delta = own - products.amax(1)
        found = state.separations().delta
        assert torch.allclose(found[left], delta, rtol=1e-9, atol=1e-12)
        assert torch.isinf(found).sum() == 300 - len(left)
        assert memory._beta(state) == pytest.approx(2 * 1.0 / float(delta[delta > 1e-9].min()))
        fresh = AssociativeMemory(beta=memory._beta(state), compare=compare)
        fresh.add(patterns[left], ids=left)
        assert torch.equal(fresh.recall(cues).ids, answer.ids)
        assert torch.equal(fresh.recall(cues).certified, answer.certified)
    memory.add(patterns[:1] + 9)
    assert memory.recall(cues).certified.tolist() == memory.recall(cues).certified.tolist()
    assert memory.beta == pytest.approx(memory._beta(memory._snapshot_for_recall()))


def test_one_pattern_is_left():
    memory = AssociativeMemory().fit(torch.eye(8))
    memory.recall(torch.eye(8))
    memory.remove([7])
    memory.recall(torch.eye(8))
    memory.remove(list(range(1, 7)))
    assert memory.recall(torch.eye(8)[5]).ids == 0


def test_changes_between_recalls_do_not_plan_the_search_again(monkeypatch):
    from hopfy.search import _state

    plans = []
    plan = _state.planned_bounds
    monkeypatch.setattr(_state, "planned_bounds", lambda rows: (plans.append(1), plan(rows))[1])
    patterns = torch.randn(4100, 32)  # without directions that would pay
    memory = AssociativeMemory(beta=1.0).fit(patterns)
    for place in range(6):
        ids = memory.add(patterns[:2] + 0.1)
        memory.recall(patterns[:20])
        memory.remove(ids)
        memory.recall(patterns[:20])
        memory.update([place], patterns=patterns[:1] + 0.2)
        if place == 3:
            memory._store.snapshot()  # moves the rows together
    assert plans == [1]


@given(st.lists(st.tuples(st.sampled_from(["put", "pop", "fork"]), st.integers(0, 9))))
def test_places_of_drafts_are_their_own(story):
    from hopfy.memory import _places

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_places, "_MOST_CHANGES", 3)
        drafts = [(_places.Places({0: 0, 5: 1}), {0: 0, 5: 1})]
        for row, (what, one) in enumerate(story):
            places, judge = drafts[one % len(drafts)]
            if what == "put":
                places.put([(one, row)])
                judge[one] = row
            elif what == "pop" and one in judge:
                assert places.pop(one) == judge.pop(one)
            elif what == "fork":
                drafts.append((places.fork(), dict(judge)))
            for own, expected in drafts:
                assert [own.get(k) for k in range(10)] == [expected.get(k) for k in range(10)]
                assert [k in own for k in range(10)] == [k in expected for k in range(10)]


def test_journaled_changes_do_not_list_all_ids_again(tmp_path, monkeypatch):
    from hopfy.memory import _store

    made = []

    class Counted(_store.Places):
        def __init__(self, table):
            made.append(len(table))
            super().__init__(table)

    with AssociativeMemory.open(tmp_path / "memory.hopfy", beta=1.0) as memory:
        memory.add(torch.randn(50, 3))
        monkeypatch.setattr(_store, "Places", Counted)
        for one in range(10):
            memory.remove([one])
            memory.update([one + 20], patterns=torch.randn(1, 3))
            with memory.batch():
                memory.add(torch.randn(1, 3), ids=[100 + one])
            assert one not in memory
            assert 100 + one in memory
    assert made == [50]
