"""The table of claims: the recorded one is what the code says, and every claim can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    tasks = ["K=1", "K=2", "K=3", "K=5", "Fox", "Tiger", "Elephant"]
    methods = ["softmax", "1.5-entmax", "sparsemax", "2-normmax", "5-normmax"]
    methods += ["2-subsets", "3-subsets", "5-subsets"]
    cells = {m: [[91.0 if best.get(task) == m else 90.0, 0.5] for task in tasks] for m in methods}
    return {"tasks": tasks, "methods": cells}


AS_PUBLISHED = {
    "K=1": "softmax", "K=2": "2-subsets", "K=3": "3-subsets", "K=5": "5-subsets",
    "Fox": "3-subsets", "Tiger": "sparsemax", "Elephant": "2-subsets",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True, True, True, True]),
        ({"K=1": "sparsemax"}, [False, True, True, True]),
        ({"K=2": "1.5-entmax"}, [True, True, False, True]),
        ({"Fox": "5-normmax"}, [True, True, True, False]),
    ],
)
def test_claims_about_table_2(tmp_path, changed, expected):
    results = _mil(**(AS_PUBLISHED | changed))
    (tmp_path / "mil-laptop.json").write_text(json.dumps(results))
    found = [
        verdict.holds for claim, verdict in judge(Recorded(tmp_path)) if claim.section == "5.3"
    ]
    assert found == expected


def test_near_the_best_is_two_points(tmp_path):
    results = _mil(**AS_PUBLISHED)
    results["methods"]["5-normmax"][3] = [88.9, 0.5]
    (tmp_path / "mil-laptop.json").write_text(json.dumps(results))
    verdicts = {claim.text: verdict for claim, verdict in judge(Recorded(tmp_path))}
    assert verdicts["Normmax is near optimal on all data sets."] == (
        "2.1 points behind on K=5",
        False,
    )
