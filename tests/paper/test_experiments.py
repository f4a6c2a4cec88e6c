"""The machinery of the experiments: parts that survive, comparisons that notice, Table 1."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfy
from hopfy import paper
from hopfy.paper import Config, Experiment, Figure, Progress, Row, Store, data, reproduce, table1
from hopfy.paper._metastable import metastable_sizes
from hopfy.paper._published import METASTABLE_STATES, SIZES
from hopfy.paper._runner import _must_be_writable
from hopfy.paper.table1 import Table1, Table1Config


@dataclass(frozen=True)
class SquaresConfig(Config):
    count: int = 3


class Squares(Experiment[SquaresConfig]):
    name = "squares"
    title = "Squares"
    profiles = {"quick": SquaresConfig(), "paper": SquaresConfig(count=5)}  # noqa: RUF012

    def run(self, config: SquaresConfig, store: Store, progress: Progress) -> dict[str, Any]:
        progress.begin("squares", config.count)
        squares = []
        for i in range(config.count):
            squares.append(store.part(f"square of {i}", lambda i=i: i * i))
            progress.advance()
        return {"squares": squares}

    def compare(self, results: Mapping[str, Any]) -> list[Row]:
        return [Row("last", results["squares"][-1], paper=4.0, tol=0.1)]

    def draw(self, *_: Any) -> list[Figure]:
        return []

    def explain(self, *_: Any) -> str:
        return "Squares grow."


# ---------------------------------------------------------------------------- the comparison


@pytest.mark.parametrize(
    ("ours", "agrees"),
    [(69.2, True), (69.3, True), (69.1, True), (69.31, False), (69.0, False), (math.nan, False)],
)
def test_a_row_agrees_within_its_tolerance(ours, agrees):
    assert Row("cell", ours, paper=69.2, tol=0.1).agrees is agrees


def test_a_row_without_a_published_number_is_not_judged():
    row = Row("cell", 1.0)
    assert row.difference is None
    assert row.agrees is None
    assert Row("cell", 1.0, paper=2.0).difference == -1.0
    assert Row("cell", 1.0, paper=2.0).agrees is None


# ---------------------------------------------------------------------------- the store


def test_a_part_is_found_again_only_under_the_same_conditions(tmp_path):
    def number(depends_on: dict[str, Any], name: str = "part") -> int:
        store = Store(tmp_path, depends_on)
        store.part(name, lambda: 0)
        return store.computed

    assert number({"seed": 0, "data": "a"}) == 1
    assert number({"seed": 0, "data": "a"}) == 0
    assert number({"data": "a", "seed": 0}) == 0
    assert number({"seed": 1, "data": "a"}) == 1
    assert number({"seed": 0, "data": "b"}) == 1
    assert number({"seed": 0, "data": "a"}, "another part") == 1
    assert number({"seed": 0, "data": "a"}) == 0


def test_names_that_read_alike_are_different_parts(tmp_path):
    store = Store(tmp_path)
    assert store.part("beta 0.1/x", lambda: 1) == 1
    assert store.part("beta 0.1 x", lambda: 2) == 2
    assert store.part("../../out", lambda: 3) == 3
    assert {path.parent for path in tmp_path.rglob("*.json")} == {tmp_path}


def test_a_resumed_part_has_the_types_of_the_first_one(tmp_path):
    first = Store(tmp_path).part("part", lambda: {1: (2, 3.5)})
    assert first == Store(tmp_path).part("part", lambda: None) == {"1": [2, 3.5]}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"result": 1}'])
def test_a_damaged_part_is_computed_again(tmp_path, content):
    store = Store(tmp_path)
    store.part("part", lambda: 1)
    store.path("part").write_bytes(content)
    assert store.part("part", lambda: 2) == 2
    assert Store(tmp_path).part("part", lambda: 3) == 2


@pytest.mark.parametrize("flip", range(0, 400, 7))
def test_a_part_whose_content_changed_is_computed_again(tmp_path, flip):
    """Any changed byte that is still JSON is noticed by the checksum."""
    store = Store(tmp_path, {"seed": 0})
    store.part("a", lambda: {"numbers": [1.5, 2.5, 3.25], "text": "abc"})
    path = store.path("a")
    content = bytearray(path.read_bytes())
    content[flip % len(content)] ^= 1
    path.write_bytes(bytes(content))
    again = Store(tmp_path, {"seed": 0})
    assert again.part("a", lambda: {"numbers": [1.5, 2.5, 3.25], "text": "abc"}) == {
        "numbers": [1.5, 2.5, 3.25],
        "text": "abc",
    }


def test_deep_json_is_no_part(tmp_path):
    store = Store(tmp_path, {})
    store.part("a", lambda: 1)
    store.path("a").write_bytes(b"[" * 200_000 + b"]" * 200_000)
    assert Store(tmp_path, {}).part("a", lambda: 2) == 2


def test_many_processes_may_look_whether_a_folder_is_writable(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_must_be_writable, [tmp_path / "results"] * 400))
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize(("old", "new"), [("desk", "laptop"), ("public", "reference-code")])
def test_a_renamed_profile_is_named(tmp_path, old, new):
    with pytest.raises(ValueError, match=f"got '{old}'; it is now called '{new}'"):
        paper.reproduce(paper.load("mil"), tmp_path, profile=old)


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    store = Store(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.part("part", lambda: 1)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert store.part("part", lambda: 2) == 2


SCRIPT = """
import os, signal, sys
from pathlib import Path
from hopfy.paper import Store

folder, how = Path(sys.argv[1]), sys.argv[2]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def compute(i):
    with (folder / "log").open("a") as log:
        log.write(f"{i}\\n")
    if i == 3 and how == "while computing":
        die()
    if i == 3 and how == "while writing":
        os.replace = die
    return i

store = Store(folder / "parts", {"seed": 0})
print([store.part(f"part {i}", lambda: compute(i)) for i in range(6)])
"""


@pytest.mark.parametrize("how", ["while computing", "while writing"])
def test_a_run_goes_on_after_kill_9(tmp_path, how):
    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), how]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(how).returncode == -signal.SIGKILL
    assert (tmp_path / "log").read_text().split() == ["0", "1", "2", "3"]
    assert len(list((tmp_path / "parts").glob("part-*.json"))) == 3
    again = run("to the end")
    assert again.stdout.strip() == "[0, 1, 2, 3, 4, 5]", again.stderr
    # Finished parts were not computed again; the one that was cut off was.
    assert (tmp_path / "log").read_text().split() == ["0", "1", "2", "3", "3", "4", "5"]


# ---------------------------------------------------------------------------- the runner


def test_a_run_leaves_a_record(tmp_path):
    run = paper.reproduce(Squares(), tmp_path, profile="paper", seed=7)
    record = json.loads((tmp_path / "squares" / "results.json").read_text())
    assert record["results"] == {"squares": [0, 1, 4, 9, 16]}
    assert record["versions"].keys() == {"hopfy", "torch", "numpy", "python"}
    assert record["versions"]["torch"] == torch.__version__
    assert (record["seed"], record["profile"]) == (7, "paper")
    assert record["config"] == {"seed": 7, "count": 5}
    assert record["data_checksum"] is None
    assert record["wall_seconds"] >= 0
    assert record["parts_computed"] == 5
    assert record["comparison"][0]["agrees"] is False
    assert [row.name for row in run.disagreements] == ["last"]


def test_a_second_run_computes_nothing_and_a_new_seed_everything(tmp_path):
    def computed(seed: int) -> int:
        return paper.reproduce(Squares(), tmp_path, seed=seed).record["parts_computed"]

    assert [computed(0), computed(0), computed(1), computed(0)] == [3, 0, 3, 0]


def test_an_unknown_profile_is_named(tmp_path):
    with pytest.raises(ValueError, match="expected a profile among quick, paper, got 'fast'"):
        paper.reproduce(Squares(), tmp_path, profile="fast")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------- the registry


def test_every_experiment_keeps_the_contract():
    assert "table1" in paper.names()
    for name in paper.names():
        experiment = paper.load(name)
        assert experiment.name == name
        assert experiment.title
        assert set(experiment.profiles) >= {"quick", "paper"}
        assert all(isinstance(config, Config) for config in experiment.profiles.values())


def test_an_unknown_experiment_is_named():
    with pytest.raises(ValueError, match=r"expected an experiment among .*table1.*, got 'table9'"):
        paper.load("table9")
    with pytest.raises(ValueError, match="got '_store'"):
        paper.load("_store")


# ---------------------------------------------------------------------------- Table 1


def plain_sizes(memories, queries, omega, beta):
    """Five updates on the whole score matrix in float64."""
    states, memories = queries.double(), memories.double()
    for _ in range(5):
        weights = omega(beta * states @ memories.T)
        states = weights @ memories
    return (weights > (0.01 if omega.margin == math.inf else 0)).sum(1)


@pytest.mark.parametrize("published", METASTABLE_STATES[:8], ids=lambda column: column.omega)
@pytest.mark.parametrize("beta", [0.3, 2.0])
def test_sizes_equal_a_plain_computation(published, beta):
    images = data.digits().images.flatten(1).float() / 8 - 1
    memories, queries = images[:600], images[600:660]
    omega = hopfy.omega_from(published.omega)
    ours = metastable_sizes(hopfy.HopfieldNetwork(memories, omega, beta), queries)
    theirs = plain_sizes(memories, queries, omega, beta)
    assert torch.equal(ours, theirs)
    assert len(set(theirs.tolist())) > 1 or beta == 2.0


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(os.environ.get("HOPFY_DATA") or "missing", "mnist").is_dir(),
    reason="MNIST is not in $HOPFY_DATA",
)
def test_sizes_on_mnist_equal_a_plain_computation():
    memories = data.mnist("train").images.flatten(1).float() / 127.5 - 1
    queries = data.mnist("test").images[:6].flatten(1).float() / 127.5 - 1
    for published in METASTABLE_STATES[:8]:
        omega = hopfy.omega_from(published.omega)
        network = hopfy.HopfieldNetwork(memories, omega, published.beta)
        ours = metastable_sizes(network, queries)
        assert torch.equal(ours, plain_sizes(memories, queries, omega, published.beta)), omega


def test_published_columns_are_percentages():
    assert len(METASTABLE_STATES) == 16
    for column in METASTABLE_STATES:
        assert len(column.percent) == len(SIZES)
        assert abs(sum(column.percent) - 100) < 0.25  # each cell is printed with one digit


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    return paper.reproduce(paper.load("table1"), folder)


def test_table1_counts_every_query(quick):
    for column in quick.results["columns"]:
        assert sum(column["counts"]) == quick.results["queries"]
        assert abs(sum(column["percent"].values()) - 100) < 1e-9


def test_table1_is_judged_on_mnist_only(quick):
    assert quick.disagreements == []
    assert all(row.agrees is None for row in quick.rows)
    assert "8 x 8 digits" in quick.experiment.explain(quick.results)


def test_table1_flags_a_wrong_cell():
    columns = [
        {"omega": c.omega, "beta": c.beta, "percent": dict(zip(SIZES, c.percent, strict=True)),
         "none": 75.0 if (c.omega, c.beta) == ("1-entmax", 0.1) else 0.0}
        for c in METASTABLE_STATES
    ]  # fmt: skip
    results = {"source": "mnist", "queries": 10_000, "columns": columns}
    table1 = paper.load("table1")
    rows = table1.compare(results)
    assert sum(row.agrees is True for row in rows) == 16 * 11
    assert [row.name for row in rows if row.agrees is None] == [
        "1-entmax, beta 0.1, of which size 0"
    ]
    assert "75.0% of the queries" in table1.explain(results)
    columns[3]["percent"]["2"] += 0.14  # one unit of the printed digit
    assert all(row.agrees is not False for row in table1.compare(results))
    columns[3]["percent"]["2"] += 0.02
    wrong = [row.name for row in table1.compare(results) if row.agrees is False]
    assert wrong == ["2-normmax, beta 0.1, size 2"]


def test_table1_writes_its_picture(quick):
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert (quick.folder / f"sizes.{kind}").read_bytes().startswith(start)
    assert [figure.name for figure in quick.figures] == ["sizes"]


def test_table_1_shows_finished_blocks(tmp_path, monkeypatch):
    """A run that is stopped between two blocks shows the first one, and resumes with the second."""
    blocks = Table1Config(source="digits", queries=60, block=30, max_steps=2)

    class Blocks(Table1):
        profiles = {"quick": blocks}  # noqa: RUF012

    with pytest.raises(ValueError, match="at least one finished block"):
        reproduce(Blocks(), tmp_path, so_far=True)
    count, calls = table1._Material.count, []

    def stopped(self, column, start):
        calls.append(start)
        if start:
            raise KeyboardInterrupt
        return count(self, column, start)

    monkeypatch.setattr(table1._Material, "count", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(Blocks(), tmp_path)
    early = reproduce(Blocks(), tmp_path, so_far=True).results
    assert early["queries"] == 30
    assert calls == [0] * 16 + [30]
    monkeypatch.setattr(table1._Material, "count", count)
    run = reproduce(Blocks(), tmp_path)
    assert run.record["parts_computed"] == 16
    assert run.results["queries"] == 60
    for one, other in zip(early["columns"], run.results["columns"], strict=True):
        assert all(a <= b for a, b in zip(one["counts"], other["counts"], strict=True))
