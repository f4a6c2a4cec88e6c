"""What people expect of a store: look up, change, vote, undo, describe, and scikit-learn's protocol."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

import hopfy
from hopfy import AssociativeMemory


def small(values=None, **options):
    memory = AssociativeMemory(beta=10.0, **options)
    memory.add(torch.eye(4), values=values)
    return memory


def test_looking_up_by_id():
    memory = small(values=[5, 6, 7, 8])
    assert memory[2].id == 2
    assert torch.equal(memory[2].pattern, torch.eye(4)[2])
    assert memory.get(np.int64(3)).value == 8
    assert small()[0].value is None
    with pytest.raises(KeyError, match=r"expected ids that are stored, got \[9\]"):
        memory.get(9)
    with pytest.raises(KeyError, match="empty"):
        AssociativeMemory()[0]
    with pytest.raises(TypeError, match="expected an id"):
        memory["cat"]
    memory[1].pattern.zero_()  # a copy
    assert torch.equal(memory[1].pattern, torch.eye(4)[1])


def test_updating_keeps_the_id():
    memory = small(values=[5, 6, 7, 8])
    memory.update([1, 3], patterns=2 * torch.eye(4)[[3, 1]])
    assert memory[1].value == 6
    assert torch.equal(memory[1].pattern, 2 * torch.eye(4)[3])
    memory.update(2, values=[70])
    assert memory[2].value == 70
    assert torch.equal(memory[2].pattern, torch.eye(4)[2])
    assert sorted(memory.ids.tolist()) == [0, 1, 2, 3]
    assert int(memory.recall(2 * torch.eye(4)[3]).ids) == 1
    for arguments, error, words in [
        (([9], torch.eye(4)[:1]), KeyError, "unknown"),
        (([1, 1], torch.eye(4)[:2]), ValueError, "twice"),
        (([1], torch.eye(4)[:2]), ValueError, "one pattern for each of the 1 ids"),
        (([1], torch.eye(3)[:1]), ValueError, "memory's 4 coordinates"),
        (([1], torch.full((1, 4), torch.nan)), ValueError, "NaN"),
        (([1],), ValueError, "got neither"),
        (([1], None, [1, 2]), ValueError, "one value for each of the 1 patterns"),
    ]:
        with pytest.raises(error, match=words):
            memory.update(*arguments)
    assert len(memory) == 4
    assert memory[1].value == 6


VALUES = {
    "text": ["a", "b", "a", "ä"],
    "text array": np.array(["one", "two", "one", "three"]),
    "bytes": np.array([b"x", b"y", b"x", b"z"]),
    "dates": np.array(["2020-01-01", "2021-01-01", "2020-01-01", "2022-05-05"], "datetime64[D]"),
    "spans": np.array([1, 2, 1, 3], "timedelta64[h]"),
    "records": [{"a": 1, "b": [1, None]}, {"c": "x"}, {"b": [1, None], "a": 1}, {}],
    "mixed": np.array([1, "b", None, 2.5], dtype=object),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_any_kind_come_back(kind, tmp_path):
    values = VALUES[kind]
    memory = small(values)
    memory.save(tmp_path / "m")
    for each in (
        memory,
        AssociativeMemory.load(tmp_path / "m"),
        pickle.loads(pickle.dumps(memory)),
    ):
        found = each.predict(torch.eye(4))
        assert list(found) == list(values)
        assert each[3].value == values[3]
        assert list(next(each.chunks(4)).values) == list(values)
        each.add(torch.ones(2, 4), values=values[:2])
        assert each[5].value == values[1]
    mixture = AssociativeMemory(beta=1e-3)
    mixture.add(torch.eye(4), values)
    vote = mixture.predict(torch.full((1, 4), 0.25))[0]
    assert vote == values[0]  # two of four (or the first of equals)


def test_one_value_for_all_and_values_that_do_not_fit():
    memory = AssociativeMemory(beta=1.0)
    memory.add(torch.eye(3), values="cat")
    memory.add(torch.ones(2, 3), values=["dog", "eel"])
    assert list(memory.predict(torch.eye(3))) == ["cat"] * 3
    numbers = AssociativeMemory(beta=1.0)
    numbers.add(torch.eye(3), values=7)
    assert numbers.predict(torch.eye(3)).tolist() == [7, 7, 7]
    for wrong, error, words in [
        (["a"], ValueError, "one value for each of the 2 patterns"),
        ([1, 2], TypeError, "expected values of kind text"),
        (None, ValueError, "with values"),
    ]:
        with pytest.raises(error, match=words):
            memory.add(torch.ones(2, 3), values=wrong)
    with pytest.raises(TypeError, match="as stored, got text"):
        numbers.add(torch.ones(2, 3), values=["a", "b"])
    with pytest.raises(TypeError, match="JSON"):
        AssociativeMemory(beta=1.0).add(torch.eye(1), values=[{"f": object()}])


def test_batches_are_all_or_nothing():
    memory = small(values=["a", "b", "c", "d"])
    seen = []
    with memory.batch():
        memory.add(torch.ones(1, 4), values="new", ids=[10])
        memory.remove([0])
        memory.update([1], values="changed")
        reader = threading.Thread(target=lambda: seen.append((len(memory), memory[1].value)))
        reader.start()
        reader.join(10)
    assert seen == [(4, "b")]
    assert memory.ids.tolist() == [2, 3, 10, 1]
    assert memory[1].value == "changed"
    before = memory.ids.tolist()
    with pytest.raises(KeyError), memory.batch():  # noqa: PT012
        memory.add(torch.ones(3, 4), values="lost")
        memory.remove([77])
    assert memory.ids.tolist() == before
    assert memory.add(torch.ones(1, 4), values="found").tolist() == [11]
    assert memory[11].value == "found"
    with memory.batch(), memory.batch():
        memory.remove([2])
    assert 2 not in memory
    with pytest.raises(ValueError, match="NaN"), memory.batch():
        memory.fit(torch.full((1, 2), torch.nan))
    assert 11 in memory


@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_neighbors_are_exact_and_ties_go_to_the_first(compare):
    patterns = torch.randint(-2, 3, (600, 5)).float()
    memory = AssociativeMemory(beta=1.0, compare=compare)
    memory.add(patterns[:300])
    memory.add(patterns[300:], ids=torch.arange(1000, 1300))
    memory.remove(torch.arange(0, 300, 7))
    kept = torch.tensor([i for i in range(600) if i >= 300 or i % 7])
    queries = torch.randint(-2, 3, (3, 4, 5)).float()
    found = memory.neighbors(queries, k=6)
    scores = (queries @ patterns[kept].T).double()
    if compare == "distance":
        scores = (queries.unsqueeze(-2) - patterns[kept]).square().sum(-1).double().sqrt()
    order = scores.argsort(dim=-1, stable=True, descending=compare == "dot")[..., :6]
    expected = kept[order]
    assert torch.equal(found.ids, torch.where(expected >= 300, expected + 700, expected))
    torch.testing.assert_close(found.scores, scores.gather(-1, order))
    with pytest.raises(ValueError, match="expected k from 1"):
        memory.neighbors(queries, k=0)


def test_scikit_learn_can_clone_and_cross_validate():
    digits, labels = load_digits(return_X_y=True)
    memory = AssociativeMemory("1.5-entmax", beta=0.05, compare="distance")
    copy = clone(memory.fit(digits[:10], labels[:10]))
    assert copy.get_params() == memory.get_params()
    assert len(copy) == 0
    scores = cross_val_score(AssociativeMemory(beta=0.1), digits[:600], labels[:600], cv=3)
    assert scores.min() > 0.85
    with pytest.raises(ValueError, match="expected parameters among"):
        memory.set_params(alpha=2)
    floats = AssociativeMemory(beta=0.1).fit(digits[:300], digits[:300, :2])
    assert floats.score(digits[:300], digits[:300, :2]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="expected values of shape"):
        floats.score(digits[:3], labels[:3])


def test_masked_arrays_say_what_is_known():
    patterns = np.random.default_rng(0).normal(size=(50, 8))
    memory = AssociativeMemory().fit(patterns)
    cues = np.ma.masked_array(patterns.copy(), mask=np.tile(np.arange(8) > 4, (50, 1)))
    cues.data[:, 5:] = np.nan
    assert (memory.recall(cues).patterns == patterns.astype(np.float64)).all()


def test_a_bad_beta_costs_time_and_not_the_machine():
    import resource

    patterns = torch.randn(1500, 256)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for omega in ("softmax", "sparsemax"):
        memory = AssociativeMemory(omega, beta=1e-4, scratch=16 << 20)
        memory.add(patterns, values=torch.arange(1500) % 7)
        answer = memory.recall(patterns[:600])
        assert int(answer.size.max()) > 500
        assert "mixture" in repr(answer)
        assert f"(of {int(answer.size.min())} to" in repr(answer)
        ids, weights = answer.weights(5)
        assert len(ids) > 500
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300  # the old way took 600 x 1,500 x 256 x 4 bytes = 900 MB


def test_softmax_recalls_stay_within_their_scratch():
    """In a process of its own: what many recalls need beyond a single one."""
    code = (
        "import resource, torch, hopfy\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "memory = hopfy.AssociativeMemory('softmax', beta=1e-3, scratch=64 << 20)\n"
        "memory.add(torch.rand(50_000, 16, generator=torch.Generator().manual_seed(0)))\n"
        "memory.recall(torch.rand(1, 16)); before = used()\n"
        "memory.recall(torch.rand(150, 16)); print(used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 64 * 1.2  # a fifth for what the allocator keeps


def test_describe_and_pickle():
    memory = small(values=["a", "b", "c", "a"])
    text = memory.describe()
    assert "4 coordinates each, float32" in text
    assert "text, 3 different ones" in text
    again = pickle.loads(pickle.dumps(memory))
    assert again.ids.tolist() == memory.ids.tolist()
    assert again.add(torch.ones(1, 4), values="z").tolist() == [4]
    assert len(pickle.loads(pickle.dumps(AssociativeMemory()))) == 0
    assert hopfy.AssociativeMemory(scratch=1).get_params()["scratch"] == 1
    with pytest.raises(ValueError, match="scratch"):
        AssociativeMemory(scratch=0)
