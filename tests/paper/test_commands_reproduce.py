"""``hopfy reproduce`` and ``hopfy data``: what a user sees when it works and when it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hopfy import paper
from hopfy._commands import app
from hopfy.paper import Config, Experiment, Figure, Row


class Fake(Experiment[Config]):
    """An experiment that gives a number, or trouble."""

    name = "fake"
    title = "A fake"
    profiles = {"quick": Config(), "paper": Config()}  # noqa: RUF012

    def __init__(self, ours: float = 2.0, trouble: BaseException | None = None) -> None:
        self.ours, self.trouble = ours, trouble

    def run(self, *_: Any) -> dict[str, Any]:
        if self.trouble is not None:
            raise self.trouble
        return {"ours": self.ours}

    def compare(self, results: Mapping[str, Any]) -> list[Row]:
        return [Row("two", results["ours"], paper=2.0, tol=0.1), Row("free", 1.0)]

    def draw(self, *_: Any) -> list[Figure]:
        return []

    def explain(self, *_: Any) -> str:
        return "It explains itself."


def hopfy(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def use(monkeypatch):
    """Make ``fake`` the only experiment."""

    def use(fake: Fake) -> None:
        monkeypatch.setattr(paper, "names", lambda: ["fake"])
        monkeypatch.setattr(paper, "load", lambda _: fake)

    return use


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    """No data on this machine, and no network."""
    import pooch

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setenv("HOPFY_DATA", str(tmp_path / "no-data"))
    monkeypatch.setattr("hopfy.paper.data._files.cache_folder", lambda: tmp_path / "no-cache")
    monkeypatch.setattr(pooch, "retrieve", offline)


def is_one_message(result: Result, *words: str) -> bool:
    lines = result.stderr.strip().splitlines()
    return (
        result.exit_code != 0
        and len(lines) == 1
        and lines[0].endswith(".")
        and all(word in lines[0] for word in words)
    )


def test_agreement_is_shown_and_recorded(tmp_path, use):
    use(Fake())
    result = hopfy("reproduce", "fake", "--out", tmp_path, "--seed", 3, "--profile", "paper")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "1 of 1 comparisons agree" in result.stdout
    assert "It explains itself." in result.stdout
    assert "yes" in result.stdout
    record = json.loads((tmp_path / "fake" / "results.json").read_text())
    assert (record["seed"], record["profile"]) == (3, "paper")


def test_a_page_shows_the_run(tmp_path, use):
    use(Fake())
    result = hopfy("reproduce", "fake", "--out", tmp_path)
    page = tmp_path / "fake" / "index.html"
    assert str(page) in result.output.replace("\n", "")
    assert "It explains itself." in page.read_text()
    assert "1 of 1 comparable ones agree" in page.read_text()


def test_a_wrong_number_is_marked_and_fails(tmp_path, use):
    use(Fake(ours=2.2))
    result = hopfy("reproduce", "all", "--out", tmp_path)
    assert is_one_message(result, "fake", "differ from the paper")
    assert "NO" in result.stdout
    assert "+0.20" in result.stdout
    assert "0 of 1 comparisons agree" in result.stdout


def test_wrong_names(tmp_path):
    result = hopfy("reproduce", "table9", "--out", tmp_path)
    assert is_one_message(result, "table1", "all", "got 'table9'")
    result = hopfy("reproduce", "table1", "--profile", "fast", "--out", tmp_path)
    assert is_one_message(result, "quick, paper", "got 'fast'")
    assert is_one_message(hopfy("data", "fetch", "mnst"), "mnist", "got 'mnst'")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path, use):
    use(Fake(trouble=AssertionError("nothing may run before the folder is known to be writable")))
    (tmp_path / "file").write_text("in the way")
    result = hopfy("reproduce", "fake", "--out", tmp_path / "file" / "below")
    assert is_one_message(result, "cannot use", str(tmp_path / "file"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_cannot_be_written(tmp_path, use):
    use(Fake())
    tmp_path.chmod(0o500)
    assert is_one_message(hopfy("reproduce", "fake", "--out", tmp_path), "Permission denied")


@pytest.mark.usefixtures("nothing_here")
def test_missing_data(tmp_path):
    result = hopfy("reproduce", "table1", "--profile", "paper", "--out", tmp_path)
    assert is_one_message(result, "mnist is missing", "hopfy data fetch mnist", "HOPFY_DATA")
    assert is_one_message(hopfy("data", "fetch", "mnist"), "mnist is missing")
    listed = hopfy("data", "list")
    assert listed.exit_code == 0
    assert "not here" in listed.stdout


def test_an_interrupted_run_says_how_to_go_on(tmp_path, use):
    use(Fake(trouble=KeyboardInterrupt()))
    result = hopfy("reproduce", "fake", "--out", tmp_path)
    assert result.exit_code == 130
    assert is_one_message(result, "continues from here")


def test_quick_needs_no_data(tmp_path):
    environment = {**os.environ, "HOPFY_DATA": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "hopfy.cli", "reproduce", "table1", "--out", str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "8 x 8 digits" in " ".join(result.stdout.split())
    assert (Path(tmp_path) / "table1" / "sizes.png").is_file()


def test_experiments_are_not_imported_with_hopfy():
    check = (
        "import sys, hopfy; "
        "print([m for m in ('hopfy.paper', 'hopfy.paper.data', 'rich', 'typer', 'pooch') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("odd", ["x[/x]", "[bold]y", ":smile: [red]z[/]", "a b[link=q]"])
def test_paths_and_names_are_printed_as_they_are(tmp_path, use, odd):
    """Brackets and colons in a path are no markup."""
    use(Fake())
    out = tmp_path / odd.replace("/", "")
    result = hopfy("reproduce", "fake", "--out", out)
    assert result.exit_code == 0, result.output
    assert str(out / "fake" / "results.json") in result.stdout
    for arguments in (["reproduce", odd], ["bench", odd], ["data", "fetch", odd]):
        assert is_one_message(hopfy(*arguments), repr(odd))


def test_explanations_and_row_names_are_printed_as_they_are(tmp_path, use, monkeypatch):
    monkeypatch.setattr(Fake, "title", "Title [/x] :smile:")
    monkeypatch.setattr(Fake, "explain", lambda *_: "It [b]explains[/] [/x] itself.")
    monkeypatch.setattr(Fake, "compare", lambda *_: [Row("row [/x]", 1.0, 2.0, 0.1)])
    use(Fake())
    stdout = hopfy("reproduce", "fake", "--out", tmp_path).stdout
    for text in ("Title [/x] :smile:", "It [b]explains[/] [/x] itself.", "row [/x]"):
        assert text in stdout


def test_help_lists_everything_that_can_be_named():
    from hopfy.bench import SUBJECTS
    from hopfy.paper.data import datasets

    for arguments in (["--help"], ["reproduce", "--help"], ["bench", "--help"]):
        shown = hopfy(*arguments).stdout
        for name in paper.names():
            assert name in shown
            assert ", ".join(paper.load(name).profiles) in shown
        assert ", ".join(SUBJECTS) in shown
        assert all(one.name in shown for one in datasets())


def test_the_version():
    import hopfy as package

    assert hopfy("--version").stdout.strip() == f"hopfy {package.__version__}"


class Many(Fake):
    """Forty parts."""

    def run(self, _: Any, __: Any, progress: Any) -> dict[str, Any]:
        progress.begin("work [/x]", 40)
        for _ in range(40):
            progress.advance()
        return {"ours": self.ours}


def test_a_piped_run_says_how_far_it_is(tmp_path, use):
    use(Many())
    lines = hopfy("reproduce", "fake", "--out", tmp_path).stdout.splitlines()
    told = [line for line in lines if line.startswith("work [/x]: ")]
    assert told == [f"work [/x]: {4 * n} of 40" for n in range(1, 11)]


@pytest.mark.parametrize("old", ["experiments", "data", "demo", "report"])
def test_a_moved_module_says_where_it_is(old):
    import importlib

    import hopfy as package

    with pytest.raises(ImportError, match=rf"hopfy\.{old} is hopfy\.paper"):
        importlib.import_module(f"hopfy.{old}")
    with pytest.raises(AttributeError, match=rf"hopfy\.{old} is hopfy\.paper"):
        getattr(package, old)


def test_fetch_without_a_name_says_what_can_be_fetched_and_what_not(nothing_here):
    from hopfy.paper.data import datasets

    result = hopfy("data", "fetch")
    assert result.exit_code == 0
    fetched, by_hand = result.stdout.split("To be obtained by hand")
    for one in datasets():
        assert one.name in (fetched if one.mirrors else by_hand)
        assert bool(one.mirrors) != bool(one.source and one.why)
        if not one.mirrors:
            assert one.source in by_hand
            assert one.why in by_hand
            assert all(file.name in by_hand for file in one.files)


def test_a_piped_status_says_what_is_done_now_and_then(monkeypatch):
    import io

    from rich.console import Console

    from hopfy.paper import terminal

    now = iter([100.0, 100.0, 101.0, 106.0, 106.0, 107.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(now))
    file = io.StringIO()
    with terminal.ShownStatus(Console(file=file, markup=False), "begin [/x]") as status:
        for step in ("too soon", "later", "too soon"):
            status.say(step)
    assert file.getvalue().splitlines() == ["begin [/x]", "later"]
