"""Bags: those made of digits, and the MIL benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfy.paper import data
from hopfy.paper.data._mil import read_bags

LABELS = torch.arange(400) % 10


@settings(max_examples=25, deadline=None)
@given(least=st.integers(1, 5), seed=st.integers(0, 1000), pairs=st.integers(1, 30))
def test_bags_of_digits_keep_the_rules(least, seed, pairs):
    bags = data.digit_bags(LABELS, least, bags=2 * pairs, length=(8, 3), seed=seed)
    assert bags.lengths.sum() == len(bags.instances)
    lengths = bags.lengths.view(-1, 2)
    assert torch.equal(lengths[:, 0], lengths[:, 1])
    assert int(lengths.min()) >= least
    for bag, label in zip(bags.separate(), bags.labels.tolist(), strict=True):
        nines = int((LABELS[bag] == 9).sum())
        assert (nines >= least) == bool(label)
        assert len(set(bag.tolist())) == len(bag)


def test_every_allowed_number_of_nines_comes_about():
    bags = data.digit_bags(LABELS, 3, bags=2000, length=(6, 0))
    counts = torch.tensor([int((LABELS[bag] == 9).sum()) for bag in bags.separate()])
    negative, positive = counts[bags.labels == 0], counts[bags.labels == 1]
    assert torch.bincount(negative, minlength=3).min() > 270  # uniform: 333 each
    assert torch.bincount(positive - 3, minlength=4).min() > 190  # 250 each
    assert (int(negative.max()), int(positive.max())) == (2, 6)


def test_bags_follow_their_seed():
    made = [data.digit_bags(LABELS, 2, bags=10, length=(8, 2), seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(made[0].instances, made[1].instances)
    assert not torch.equal(made[0].lengths, made[2].lengths) or not torch.equal(
        made[0].instances, made[2].instances
    )


def test_impossible_bags_are_named():
    with pytest.raises(ValueError, match="even number of bags, got 2 and 3"):
        data.digit_bags(LABELS, 2, bags=3, length=(8, 2))
    with pytest.raises(ValueError, match=r"images of digit 9 .* got 1 and 9; choose shorter"):
        data.digit_bags(LABELS[:10], 2, bags=2, length=(8, 0))


def write(path: Path, labels: list[float], ids: list[int]) -> Path:
    features = np.arange(2.0 * len(ids)).reshape(-1, 2)
    content = {
        "features": scipy.sparse.csc_matrix(features),
        "labels": scipy.sparse.csc_matrix([labels]),
        "bag_ids": np.array([ids], dtype=np.uint8),
    }
    scipy.io.savemat(path, content)
    return path


def test_bags_are_read_in_the_order_of_their_ids(tmp_path):
    bags = read_bags(write(tmp_path / "bags.mat", [1, -1, 1], [2, 1, 2]))
    assert bags.lengths.tolist() == [1, 2]
    assert bags.labels.tolist() == [0, 1]
    assert bags.instances.tolist() == [[2.0, 3.0], [0.0, 1.0], [4.0, 5.0]]


def test_two_labels_in_a_bag_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one label for all instances"):
        read_bags(write(tmp_path / "bags.mat", [1, -1, -1], [2, 1, 2]))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "bags.mat"
    path.write_bytes(b"not a MATLAB file at all, but long enough to look at" * 10)
    with pytest.raises(ValueError, match=r"expected a MATLAB file .* got something else"):
        read_bags(path)
    scipy.io.savemat(path, {"features": np.eye(2)})
    with pytest.raises(ValueError, match=r"expected a MATLAB file .* got something else"):
        read_bags(path)


def test_unknown_animals_are_named():
    with pytest.raises(ValueError, match="among elephant, fox, tiger, got 'wolf'"):
        data.mil_benchmark("wolf")


@pytest.mark.skipif(
    not Path(os.environ.get("HOPFY_DATA") or "missing", "mil").is_dir(),
    reason="the MIL benchmarks are not in $HOPFY_DATA",
)
@pytest.mark.parametrize(("animal", "total"), [("elephant", 1391), ("fox", 1320), ("tiger", 1220)])
def test_the_real_benchmarks(animal, total):
    bags = data.mil_benchmark(animal)
    assert bags.instances.shape == (total, 230)
    assert bags.lengths.sum() == total
    assert int(bags.lengths.max()) == 13
    assert bags.labels.bincount().tolist() == [100, 100]
    assert bool(bags.instances.isfinite().all())
