"""The tables of measured numbers in the docs are those of the JSON files beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8")
ROWS = {line for line in PAGE.splitlines() if line.startswith("|")}


def read(name: str) -> dict:
    return json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_noise_of_table_2():
    for cell in read("mil-noise")["cells"]:
        animal, method, *numbers = cell.values()
        shown = " | ".join(f"{number:.1f}" for number in numbers)
        assert f"| {animal.capitalize()}, {method} | {shown} |" in ROWS


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
