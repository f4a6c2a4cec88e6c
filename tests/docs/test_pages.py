"""Every block of Python code in the README and in the docs runs, and prints what the page says.

The blocks of a page run in order and share their names. A ``text`` block right after a ``python``
block is its output: it must be equal, except for decimal numbers, which may differ by the tolerance
of the page where training amplifies rounding. A link to another page must lead somewhere.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NEEDS = {"estimators.md": "skorch", "plots.md": "matplotlib"}
TOLERANCE = {"estimators.md": 0.04}
NUMBER = re.compile(r"\d+\.\d+")
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


class Block(NamedTuple):
    """Code, and what the page says it prints (None where the page says nothing)."""

    code: str
    output: str | None


def blocks_of(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match.group(1), match.group(2)) for match in found]


def same(printed: str, expected: str, tolerance: float) -> bool:
    numbers = zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=False)
    close = all(abs(float(own) - float(other)) <= tolerance for own, other in numbers)
    return close and NUMBER.sub("#", printed) == NUMBER.sub("#", expected)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_the_code_runs_and_prints_what_the_page_says(page: Path, tmp_path, monkeypatch) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    if any("sklearn" in block.code for block in blocks_of(page)):
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks_of(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, str(page), "exec"), names)
        if block.output is not None:
            tolerance = TOLERANCE.get(page.name, 0.0)
            message = f"{name_of(page)} says\n{block.output}\nbut this was printed\n"
            assert same(printed.getvalue(), block.output, tolerance), message + printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_the_numbers_in_the_readmes_comments_are_true() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    import hopfy.functional as F

    claims = re.findall(r"^(F\.\w+\(scores, .*?\)) +#.*?\[([\d., ]+)\]", text, flags=re.MULTILINE)
    assert len(claims) == 2
    for call, numbers in claims:
        scores = torch.tensor([[1.0, 0.5, -1.0, -2.0]])
        answer = eval(call, {"F": F, "scores": scores})
        expected = torch.tensor([[float(n) for n in numbers.split(",")]])
        torch.testing.assert_close(answer, expected, rtol=0, atol=0.006)
