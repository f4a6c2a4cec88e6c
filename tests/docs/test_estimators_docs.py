"""The examples on the page about the estimators run and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("skorch")

PAGE = Path(__file__).parents[2] / "docs" / "estimators.md"
NUMBER = re.compile(r"\d+\.\d+")


def run_example(heading: str, lines: int) -> tuple[str, str]:
    """What the first example below a heading prints, and what the page says that it prints."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}")[1]
    code, output = re.search(
        r"```python\n(.*?)```\s*```text\n(.*?)```", section, re.DOTALL
    ).groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= lines
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {})
    return printed.getvalue(), output


def test_the_example_of_bags_prints_what_the_page_says():
    printed, output = run_example("Bags of instances", lines=12)
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", output)
    # Another processor rounds otherwise, and training amplifies it.
    for own, other in zip(NUMBER.findall(printed), NUMBER.findall(output), strict=True):
        assert float(own) == pytest.approx(float(other), abs=0.04)


def test_the_example_of_a_pipeline_runs():
    section = PAGE.read_text(encoding="utf-8").split("## Bags of instances")[1]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[1]
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert names["search"].estimator is names["model"]


def test_the_example_of_rationales_prints_what_the_page_says():
    printed, output = run_example("Texts and the words that decide", lines=10)
    assert printed == output
