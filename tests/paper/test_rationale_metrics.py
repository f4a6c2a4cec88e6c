"""Metrics of rationales, against scikit-learn and counting by hand."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from hopfy.paper._published import RATIONALES
from hopfy.paper.rationale._metrics import human_overlap, macro_f1, mean_span, spans_of


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_macro_f1_is_scikit_learns(pairs):
    found, labels = zip(*pairs, strict=True)
    assert macro_f1(found, labels) == pytest.approx(f1_score(labels, found, average="macro"))


@settings(max_examples=50)
@given(st.lists(st.booleans(), max_size=20))
def test_spans_cover_exactly_what_is_selected(flags):
    selected = np.array(flags, bool)
    spans = spans_of(selected)
    covered = np.zeros(len(selected), bool)
    for start, stop in spans:
        assert start < stop
        covered[start:stop] = True
    np.testing.assert_array_equal(covered, selected)
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(spans))


def test_overlap_averages_precision_and_recall_before_f1():
    selected = [np.array([1, 1, 0, 0], bool), np.array([0, 0, 0, 1], bool)]
    spans = [[(0, 1)], [(0, 4), (2, 4)]]
    found = human_overlap(selected, spans)
    assert found is not None
    assert found.precision == pytest.approx((0.5 + 1) / 2)
    assert found.recall == pytest.approx((1 + 0.25) / 2)
    assert found.f1 == pytest.approx(2 * 0.75 * 0.625 / 1.375)


@pytest.mark.parametrize("empty", [(0, 0), (1, 1), (3, 3)])
def test_a_mark_of_no_words_changes_no_overlap(empty):
    selected = [np.array([True, True, False]), np.array([False, True, True])]
    marks = [[(0, 1)], [(1, 2)]]
    with_empty = [[*own, empty] for own in marks]
    assert human_overlap(selected, with_empty) == human_overlap(selected, marks)
    assert human_overlap([*selected, selected[0]], [*marks, [empty]]) == human_overlap(
        selected, marks
    )
    assert human_overlap(selected[:1], [[empty]]) is None


def test_overlap_skips_texts_without_marks_and_counts_what_was_not_read():
    empty = np.zeros(3, bool)
    assert human_overlap([empty], [[]]) is None
    assert human_overlap([empty], [[(0, 1)]]) == (0.0, 0.0, 0.0)
    found = human_overlap([np.ones(2, bool), empty], [[(0, 4)], []])
    assert found is not None
    assert (found.precision, found.recall) == (1.0, 0.5)


def test_mean_span_is_the_mean_over_texts():
    assert mean_span([np.ones(4, bool), np.array([1, 0, 1, 0], bool), np.zeros(2, bool)]) == 2.5
    assert mean_span([np.zeros(2, bool)]) == 0.0


def test_published_numbers():
    """Every number of the table, beside the paper's tables as data."""
    path = Path(os.environ.get("HOPFY_DATA") or "missing").parent / "paper" / "tables.json"
    if not path.is_file():
        pytest.skip("the paper's tables are not beside this checkout")
    lines = json.loads(path.read_text())["rationalization"]
    names = {
        ("SparseMAP Hopfield", "k-subsets"): "k-subsets",
        ("SparseMAP Hopfield", "sequential k-subsets"): "sequential k-subsets",
        ("SPECTRA", "sequential k-subsets"): "SPECTRA",
        ("HardKuma", "-"): "HardKuma",
        ("Sparse attention", "sparsemax"): "sparsemax",
        ("Sparse attention", "fusedmax"): "fusedmax",
        ("SFE", "top-k"): "SFE, top-k",
        ("SFE", "contiguous"): "SFE, contiguous",
        ("SFE w/ baseline", "top-k"): "SFE with baseline, top-k",
        ("SFE w/ baseline", "contiguous"): "SFE with baseline, contiguous",
        ("Gumbel", "top-k"): "Gumbel, top-k",
        ("Gumbel", "contiguous"): "Gumbel, contiguous",
    }
    keys = ("sst_f1", "agnews_f1", "imdb_f1", "beer_mse", "beer_hro_f1")
    found = 0
    for line in lines:
        ours = RATIONALES.get(names.get((line["method"], line["rationale"]), ""))
        if ours is not None:
            found += 1
            theirs = [tuple(line[key][part] for part in ("mean", "min", "max")) for key in keys]
            assert [tuple(spread) for spread in ours] == theirs
    assert found == len(RATIONALES)
