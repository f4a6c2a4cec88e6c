"""The page about networks shows code that runs, with the output it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest


def test_the_digits_example_prints_what_the_page_says() -> None:
    pytest.importorskip("sklearn")
    page = Path(__file__).parents[2] / "docs" / "network.md"
    code, output = re.findall(r"```(?:python|text)\n(.*?)```", page.read_text("utf-8"), re.S)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(page), "exec"), {})
    assert printed.getvalue() == output
