"""Tables of `hopfy bench`: every word and number is shown, on lines of 80 characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopfy.bench import table_lines

RECORDS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_recorded_tables_fit_and_lose_no_word(record: Path, width: int) -> None:
    rows: list[dict[str, Any]] = json.loads(record.read_text())["rows"]
    lines = table_lines(rows, width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    assert "…" not in shown
    for row in rows:
        for name, value in row.items():
            words = name.split("_") + (value.split() if isinstance(value, str) else [])
            assert all(word in shown for word in words)


def test_names_are_repeated_beside_columns_that_did_not_fit() -> None:
    rows = [{"name": "map", **{f"column{i}": i for i in range(20)}}]
    lines = table_lines(rows, 40)
    assert sum(line.startswith("map") for line in lines) > 1
    assert " ".join(lines).count("column") == 20


def test_without_numbers_and_with_a_word_that_is_too_long() -> None:
    lines = table_lines([{"name": "a" * 50, "unit": "ms"}], 40)
    assert lines[-1] == "a" * 50 + "  ms"
