"""The example on the page about the memory prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest


def test_the_example_prints_what_the_page_says():
    pytest.importorskip("sklearn")
    page = Path(__file__).parents[2] / "docs" / "memory.md"
    code, output = re.search(
        r"```python\n(.*?)```\s*```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    ).groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 11
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(page), "exec"), {})
    assert printed.getvalue() == output
