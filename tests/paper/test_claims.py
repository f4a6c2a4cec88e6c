"""The table of claims: the recorded one is what the code says, and every claim can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopfy.paper._published import METASTABLE_STATES, MIL_TASKS, SIZES
from hopfy.paper.claims import CLAIMS, Recorded, as_markdown, judge

ROOT = Path(__file__).parents[2]


def test_the_documentation_shows_the_verdicts_on_the_recorded_results():
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    shown = page.split("<!-- claims -->\n")[1].split("<!-- end of claims -->")[0].strip()
    assert shown == as_markdown(judge(Recorded(ROOT / "docs" / "results"))).strip()


def test_rules_leave_no_choice():
    for claim in CLAIMS:
        assert " or " not in claim.rule


def test_what_is_not_recorded_is_not_judged(tmp_path):
    assert {verdict.holds for _, verdict in judge(Recorded(tmp_path))} == {None}


def _mil(**best: str) -> dict:
    """Eight methods with the same mean, but for the best one of each task."""
    methods = ["softmax", "1.5-entmax", "sparsemax", "2-normmax", "5-normmax"]
    methods += ["2-subsets", "3-subsets", "5-subsets"]
    cells = [
        {"task": task, "method": method, "seeds": [0, 1], "test": [mean - 0.5, mean + 0.5]}
        for task in MIL_TASKS
        for method in methods
        for mean in [91.0 if best.get(task) == method else 90.0]
    ]
    return {"cells": cells}


AS_PUBLISHED = {
    "K=1": "softmax", "K=2": "2-subsets", "K=3": "3-subsets", "K=5": "5-subsets",
    "fox": "3-subsets", "tiger": "sparsemax", "elephant": "2-subsets",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True, True, True, True]),
        ({"K=1": "sparsemax"}, [False, True, True, True]),
        ({"K=2": "1.5-entmax"}, [True, True, False, True]),
        ({"fox": "5-normmax"}, [True, True, True, False]),
    ],
)
def test_claims_about_table_2(tmp_path, changed, expected):
    results = _mil(**(AS_PUBLISHED | changed))
    (tmp_path / "mil-laptop.json").write_text(json.dumps(results))
    found = [
        verdict.holds for claim, verdict in judge(Recorded(tmp_path)) if claim.section == "5.3"
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("task", "unknown"),
    [("K=1", {0, 1}), ("K=3", {1, 2}), ("fox", {1, 3})],
)
def test_an_incomplete_column_of_table_2_is_not_judged(tmp_path, task, unknown):
    results = _mil(**AS_PUBLISHED)
    results["cells"] = [
        cell for cell in results["cells"] if (cell["task"], cell["method"]) != (task, "2-subsets")
    ]
    (tmp_path / "mil-laptop.json").write_text(json.dumps(results))
    found = [each for claim, each in judge(Recorded(tmp_path)) if claim.section == "5.3"]
    assert [each.holds for each in found] == [
        None if place in unknown else True for place in range(4)
    ]
    assert all(each.ours == f"not complete: {task}" for each in found if each.holds is None)


def _table1(queries: int = 10_000) -> dict:
    """The published Table 1 as if it had been measured."""
    columns = [
        {
            "omega": each.omega,
            "beta": each.beta,
            "percent": dict(zip(SIZES, each.percent, strict=True)),
        }
        for each in METASTABLE_STATES
    ]
    return {"queries": queries, "columns": columns}


def _percent(table1: dict, omega: str, beta: float) -> dict:
    (found,) = [c for c in table1["columns"] if (c["omega"], c["beta"]) == (omega, beta)]
    return found["percent"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ((), [True, True, True]),
        (("2-entmax", 0.1, "1", 10.0), [False, True, True]),
        (("2-normmax", 0.1, "2", 60.0), [True, False, True]),
        (("8-subsets", 1.0, "10+", 99.0), [True, True, False]),
    ],
)
def test_claims_about_table_1(tmp_path, changed, expected):
    results = _table1()
    if changed:
        omega, beta, size, value = changed
        _percent(results, omega, beta)[size] = value
    (tmp_path / "table1.json").write_text(json.dumps({"results": results}))
    verdicts = [each for claim, each in judge(Recorded(tmp_path)) if claim.section == "5.2"]
    assert [each.holds for each in verdicts] == expected
    assert not any("queries)" in each.ours for each in verdicts)


def test_a_part_of_table_1_is_named(tmp_path):
    (tmp_path / "table1.json").write_text(json.dumps(_table1(4000)))
    for claim, verdict in judge(Recorded(tmp_path)):
        assert ("first 4,000 of 10,000" in verdict.ours) == (claim.section == "5.2")


def _fig3(**changed: float) -> dict:
    measured = [
        {"map": name, "beta": beta, "single_percent": 10.0 * place * beta, "evenness": 0.995}
        for beta in (1.0, 4.0)
        for place, name in enumerate(("1-entmax", "1.5-entmax", "2-entmax", "5-normmax"))
    ]
    measured[-1].update(changed if "evenness" in changed else {})
    measured[-2].update(changed if "single_percent" in changed else {})
    return {"measured": measured}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True, True]),
        ({"single_percent": 1.0}, [False, True]),
        ({"evenness": 0.98}, [True, False]),
    ],
)
def test_claims_about_figure_3(tmp_path, changed, expected):
    (tmp_path / "fig3.json").write_text(json.dumps(_fig3(**changed)))
    found = [each.holds for claim, each in judge(Recorded(tmp_path)) if claim.section == "5.1"]
    assert found == expected


def _rationale(**changed: float | None) -> dict:
    """Two runs of four methods on five data sets, as the paper claims them."""
    methods = ("k-subsets", "sequential k-subsets", "SPECTRA", "HardKuma")
    cells: dict = {
        data: {m: [{"score": 0.8, "span": 1.5}, {"score": 0.8, "span": 1.5}] for m in methods}
        for data in ("sst", "ag_news", "imdb", "beer", "eraser_movies")
    }
    for data, own in cells.items():
        for method, runs in own.items():
            for run in runs:
                run["score"] = 0.02 if data == "beer" else 0.8
                run["span"] = 1.6 if method == "sequential k-subsets" else 1.5
                if data == "eraser_movies":
                    people = 0.4 if method == "sequential k-subsets" else 0.3
                    run["overlap"] = {"f1": people}
    if "beer" in changed:
        cells["beer"]["sequential k-subsets"][1]["score"] = changed["beer"]
    if "imdb" in changed:
        del cells["imdb"]["HardKuma"]
    if "overlap" in changed:
        overlap = None if changed["overlap"] is None else {"f1": changed["overlap"]}
        cells["eraser_movies"]["SPECTRA"] = [{"score": 0.8, "overlap": overlap}]
    if "span" in changed:
        cells["sst"]["sequential k-subsets"][0]["span"] = changed["span"]
    return {"cells": cells}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True, True, True]),
        ({"beer": 0.06}, [False, True, True]),
        ({"beer": 0.039}, [True, True, True]),  # with the other run 0.0095 worse
        ({"imdb": None}, [None, True, True]),
        ({"imdb": None, "beer": 0.06}, [False, True, True]),
        ({"overlap": 0.5}, [True, False, True]),
        ({"overlap": None}, [True, None, True]),
        ({"span": 1.3}, [True, True, False]),
    ],
)
def test_claims_about_table_3(tmp_path, changed, expected):
    (tmp_path / "rationale-laptop.json").write_text(json.dumps(_rationale(**changed)))
    found = [each.holds for claim, each in judge(Recorded(tmp_path)) if claim.section == "5.4"]
    assert found == expected


def test_near_the_best_is_two_points(tmp_path):
    results = _mil(**AS_PUBLISHED)
    for cell in results["cells"]:
        if (cell["task"], cell["method"]) == ("K=5", "5-normmax"):
            cell["test"] = [88.4, 89.4]
    (tmp_path / "mil-laptop.json").write_text(json.dumps(results))
    verdicts = {claim.text: verdict for claim, verdict in judge(Recorded(tmp_path))}
    assert verdicts["Normmax is near optimal on all data sets."] == (
        "2.1 points behind on K=5",
        False,
    )
