"""The site: its reference is complete, its equations lead to code, it loads nothing from elsewhere.

Building it needs ``pip install 'hopfy[docs]'``; what can be checked without is checked without.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .test_public_api import MODULES

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_site"
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
LABELS = (Path(__file__).parent / "paper_labels.txt").read_text(encoding="utf-8").split()
ROLE = re.compile(r"\{py:(?:func|class|meth|obj|mod)\}`~?([\w.]+)`")
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture
def generator(monkeypatch):
    """Imports a module of the site's generator."""
    monkeypatch.syspath_prepend(str(SITE))
    return importlib.import_module


def found(name: str) -> object:
    """The object with this full name."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(name)


def test_every_public_module_has_a_page(generator) -> None:
    assert sorted(generator("reference").MODULES) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_on_the_page_of_its_module(name: str, generator) -> None:
    if name.endswith("transformers"):
        pytest.importorskip("transformers")
    page = "\n".join(generator("reference")._page(name))
    module = importlib.import_module(name)
    for public in module.__all__:
        assert re.search(rf"[ .`]{re.escape(public)}\b", page), f"{name}.{public}"


def test_every_label_of_the_paper_is_on_the_page_of_equations() -> None:
    assert [label for label in LABELS if f"(`{label}`)" not in EQUATIONS] == []
    numbers = [int(n) for n in re.findall(r"^\*\*Eq\. (\d+)\*\*", EQUATIONS, flags=re.MULTILINE)]
    assert numbers == list(range(1, 32))
    propositions = re.findall(r"^\*\*Prop\. (\d+)\*\*", EQUATIONS, flags=re.MULTILINE)
    assert propositions == ["1", "2", "3", "4", "5"]


def test_the_code_names_every_number_of_the_paper() -> None:
    """A search for "Eq. 19" finds the code that computes it."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named: dict[str, set[str]] = {}
    for kind, rest in re.findall(
        r"\b(Eq|Prop|Def|Alg|Example)s?\.?\s((?:\d+(?:,\s| and )?)+)", code
    ):
        named.setdefault(kind, set()).update(re.findall(r"\d+", rest))
    headings = re.findall(
        r"^\*\*(Eq|Prop|Def|Alg|Example)\.? (\d+)\*\*", EQUATIONS, flags=re.MULTILINE
    )
    assert len(headings) == 43
    assert [(kind, n) for kind, n in headings if n not in named[kind]] == []


def test_every_equation_leads_to_code() -> None:
    entries = re.split(r"^\((?:eq|prop|def|ex|alg)-\d+\)=$", EQUATIONS, flags=re.MULTILINE)[1:]
    for entry in entries:
        assert "\nCode: " in entry, entry
        assert ROLE.search(entry), entry


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_on_pages_exist(page: Path) -> None:
    for name in ROLE.findall(page.read_text(encoding="utf-8")):
        if name.startswith("hopfy"):
            assert found(name) is not None


def test_foreign_resources_are_found(generator) -> None:
    check = generator("check").external_resources
    assert check('<img src="https://a.org/x.png">', ".html") == ["https://a.org/x.png"]
    assert check('<script src="//a.org/x.js"></script>', ".html") == ["//a.org/x.js"]
    assert check('<p style="background: url(https://a.org/y)">', ".html") == ["https://a.org/y"]
    assert check("@import 'https://a.org/z.css';", ".css") == ["https://a.org/z.css"]
    assert check("fetch('https://a.org/z')", ".js") == ["https://a.org/z"]
    quiet = (
        '<a href="https://a.org">a</a><link rel="canonical" href="https://a.org"><img src="x.png">'
    )
    assert check(quiet, ".html") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_formulas_become_mathml(page: Path, generator) -> None:
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx")
    to_mathml = generator("mathml").to_mathml
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL):
        assert "<math" in to_mathml(block, block=True)


def test_every_table_that_a_page_includes_is_written_and_no_other(generator, tmp_path) -> None:
    generator("tables").write_tables(tmp_path)
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    included = {name for text in texts for name in re.findall(r"generated/([\w-]+\.md)", text)}
    recall = {name for name in included if name.startswith("recall-")}
    assert included - recall == {path.name for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "|" in line]
        assert len(lines) > 2
        assert len({line.count("|") for line in lines}) == 1, path.name


def test_recall_experiments_are_shown_from_their_records(generator, tmp_path) -> None:
    """Each with a light and a dark figure that exist, and two sentences with the record's numbers."""
    pytest.importorskip("matplotlib")
    recall = generator("recall")
    recall.write_recall(tmp_path)
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for name in recall.EXPERIMENTS:
        assert f"generated/recall-{name}.md" in page
        record = f"results/{name}.json"
        used = record if (ROOT / "docs" / record).exists() else f"results/{name}-laptop.json"
        assert f"]({used})" in page
        text = (tmp_path / f"recall-{name}.md").read_text(encoding="utf-8")
        assert len(re.findall(r"\.(?:\s|$)", text.split(":::")[0])) == 2, name
        shown = re.findall(r"generated/([\w-]+\.png)", text)
        assert len(shown) == 2
        assert all((tmp_path / picture).is_file() for picture in shown)


def test_every_picture_that_a_page_shows_is_drawn_and_no_other(generator) -> None:
    pytest.importorskip("matplotlib")
    names = generator("pictures").PICTURES
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    shown = {name for text in texts for name in re.findall(r"generated/([\w-]+)\.png", text)}
    assert shown == {f"{name}{kind}" for name in names for kind in ("", "-dark")}


def test_every_example_has_its_place_in_the_gallery() -> None:
    order = re.search(r"EXAMPLES = \[(.*?)\]", (SITE / "conf.py").read_text("utf-8"), re.DOTALL)
    listed = re.findall(r'"(\w+\.py)"', order[1])
    files = sorted(path.name for path in (ROOT / "docs" / "gallery").glob("*.py"))
    assert sorted(listed) == files
    assert len(files) >= 12


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """With the gallery, as ``make docs`` does; every check of the built pages passes."""
    for package in ("sphinx_gallery", "furo", "myst_parser", "sphinx_design", "latex2mathml"):
        pytest.importorskip(package)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    for command in (["build.py", str(tmp_path / "site")], ["check.py", str(tmp_path / "site")]):
        done = subprocess.run(
            [sys.executable, str(SITE / command[0]), *command[1:]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
