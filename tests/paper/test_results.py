"""The page of results: up to date, every cell judged by its interval, blanks said to be blank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hopfy.paper._intervals import Interval, of_mean, of_share
from hopfy.paper._published import METASTABLE_STATES, SIZES
from hopfy.paper.claims import Recorded
from hopfy.paper.rationale._task import METHODS
from hopfy.paper.results import Cell, pages

ROOT = Path(__file__).parents[2]


def test_the_pages_are_what_the_records_say():
    for name, text in pages(Recorded(ROOT / "docs" / "results")).items():
        assert (ROOT / "docs" / name).read_text("utf-8") == text


def test_every_method_of_table_3_has_a_row():
    text = pages(Recorded(ROOT / "docs" / "results"))["results-table-3.md"]
    scores = text.split("## Scores with")[0]
    for method in METHODS:
        row = next(line for line in scores.splitlines() if line.startswith(f"| {method} |"))
        assert row.count("|") == 7
        assert "| |" not in row.replace("  ", " ")


def test_nothing_recorded_is_nothing_claimed(tmp_path):
    found = pages(Recorded(tmp_path))
    assert list(found) == ["results.md", *(f"results-table-{number}.md" for number in (1, 2, 3))]
    assert found.pop("results.md").count("not run") == 10
    assert sum(text.count("not run") for text in found.values()) == 10
    assert not any("|" in text for text in found.values())


def test_a_run_is_judged_by_its_test_texts_and_several_by_their_spread(tmp_path):
    """An error on Beer has no interval, a method that was not run says so."""
    one = {"score": 0.8, "texts": [10, 10, 100]}
    cells = {
        "sst": {"k-subsets": [one], "SPECTRA": [{"score": 0.79}, {"score": 0.81}]},
        "beer": {"k-subsets": [{"score": 0.02, "selected": 0.1, "span": 2.0, "sufficiency": 0.0,
                                "comprehensiveness": 0.1}]},
    }  # fmt: skip
    (tmp_path / "rationale-laptop.json").write_text(json.dumps({"cells": cells}))
    rows = pages(Recorded(tmp_path))["results-table-3.md"].splitlines()
    half = of_share(0.8, 100).half
    cells = f"0.800 ± {half:.3f} (0.81) ✓ | not run | not run | 0.020 (0.017) | not run"
    assert f"| k-subsets | {cells} |" in rows
    half = of_mean(0.8, 0.01 * 2**0.5, 2).half
    assert any(row.startswith(f"| SPECTRA | 0.800 ± {half:.3f} (0.8) ✓") for row in rows)
    assert "| Beer, k-subsets | 0.100 | 2.000 | 0.000 | 0.100 | – |" in rows


@pytest.mark.parametrize("queries", [200, 10_000])
def test_table_1_is_judged_by_the_number_of_queries(tmp_path, queries):
    columns = []
    for number, column in enumerate(METASTABLE_STATES):
        percent = dict(zip(SIZES, column.percent, strict=True))
        if number == 0:
            percent["1"] += 1.5
        columns.append({"omega": column.omega, "beta": column.beta, "percent": percent})
    results = {"queries": queries, "columns": columns}
    (tmp_path / "table1.json").write_text(json.dumps({"results": results}))
    inside = 176 if queries == 200 else 175
    assert (
        f"{inside} of 176 published numbers lie inside"
        in pages(Recorded(tmp_path))["results-table-1.md"]
    )


@settings(max_examples=50, deadline=None)
@given(st.floats(-50, 50), st.floats(0, 10), st.integers(2, 10))
def test_the_interval_of_a_mean_is_students(mean, deviation, runs):
    low, high = of_mean(mean, deviation, runs)
    half = stats.t.ppf(0.975, runs - 1) * deviation / runs**0.5
    assert low == pytest.approx(mean - half, abs=1e-3)
    assert high == pytest.approx(mean + half, abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.data())
def test_the_interval_of_a_share_is_wilsons(cases, data):
    count = data.draw(st.integers(0, cases))
    expected = stats.binomtest(count, cases).proportion_ci(method="wilson")
    assert of_share(count / cases, cases) == pytest.approx(tuple(expected), abs=1e-9)


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="at least 2 runs"):
        of_mean(1.0, 1.0, 1)
    with pytest.raises(ValueError, match="at least 1 case"):
        of_share(0.5, 0)


def test_marks():
    assert Cell(None).shown(1) == "not run"
    assert Cell(1.0).shown(1) == "1.0"
    assert Cell(1.0, Interval(0.5, 1.5), 1.54).shown(1) == "1.0 ± 0.5 (1.54) ✓"  # printed as 1.5
    assert Cell(1.0, Interval(0.5, 1.5), 1.6).shown(1) == "1.0 ± 0.5 (1.6) ✗"
