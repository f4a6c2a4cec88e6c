"""The tables of measured numbers in the docs are those of the JSON files beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hopfy.paper._published import MIL, MIL_TASKS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8")
ROWS = {line for line in PAGE.splitlines() if line.startswith("|")}


def read(name: str) -> dict:
    return json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def plain(line: str) -> str:
    return line.replace("**", "")


def test_table_2():
    """Mean and deviation of every cell, the published mean, and the best of every column in bold."""
    recorded = read("mil-laptop")
    published = {row.omega: row.cells for row in MIL}
    best = [max(cells[n][0] for cells in recorded["methods"].values()) for n in range(7)]
    for method, cells in recorded["methods"].items():
        line = f"| {method} |"
        for n, (mean, deviation) in enumerate(cells):
            cell = f"{mean:.1f} ± {deviation:.1f}"
            cell = f"**{cell}**" if mean == best[n] else cell
            paper = f" ({published[method][n][0]:.1f})" if method in published else ""
            line += f" {cell}{paper} |"
        assert line in ROWS
    assert [task.lower() for task in recorded["tasks"]] == [task.lower() for task in MIL_TASKS]


def test_table_2_with_the_settings_of_the_reference_code():
    recorded = read("mil-reference-code")
    published = {row.omega: row.cells for row in MIL}
    for task, numbers in recorded["tasks"].items():
        column = MIL_TASKS.index(task.replace(" ", ""))
        cells = [
            f"{ours:.1f} ({published[method][column][0]:.1f})"
            for method, ours in zip(recorded["methods"], numbers, strict=True)
        ]
        assert f"| {task} | {' | '.join(cells)} |" in ROWS


def test_the_noise_of_table_2():
    for method, own in read("mil-noise")["methods"].items():
        assert f"| {method} | {' | '.join(f'{number:.1f}' for number in own.values())} |" in ROWS


def test_figure_3():
    measured = read("fig3")["results"]["measured"]
    for beta in (1, 4, 10):
        shares = [f"{each['single_percent']:.1f}" for each in measured if each["beta"] == beta]
        assert f"| beta = {beta} | {' | '.join(shares)} |" in ROWS


@pytest.mark.parametrize("name", [path.stem for path in (DOCS / "results").glob("*.json")])
def test_every_record_is_linked(name: str):
    assert f"results/{name}.json" in PAGE


def test_code_has_no_measured_numbers():
    """Numbers that were measured live in JSON: no prose in the experiments names a percentage."""
    folder = Path(__file__).parents[2] / "src" / "hopfy" / "paper"
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(?:have|has|had|gives) \d+\.\d\b", text), path
