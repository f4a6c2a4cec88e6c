"""Recorded results: what is kept, and that nothing is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfy import paper
from hopfy.paper import reproduce
from hopfy.paper.claims import Recorded
from hopfy.paper.mil import MIL
from hopfy.paper.mil._recorded import merged, runs_of
from hopfy.paper.record import compact, record

NAMES = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**5), 10**5) | NAMES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=40,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_written_compactly_is_read_as_it_was(value):
    assert json.loads(compact(value)) == value


def test_a_run_is_recorded_with_what_it_depends_on(tmp_path):
    run = reproduce(paper.load("table1"), tmp_path / "out")
    path = record(run.folder, tmp_path)
    assert path.name == "table1-quick.json"
    kept = json.loads(path.read_text("utf-8"))
    assert kept["data_checksum"] == run.record["data_checksum"]
    assert kept["config"]["queries"] == 300
    found = Recorded(tmp_path).read("table1-quick")
    assert found["columns"][0]["counts"] == run.results["columns"][0]["counts"]
    assert path.stat().st_size < (run.folder / "results.json").stat().st_size


SEEDS = st.lists(st.integers(0, 6), unique=True, max_size=5).map(sorted)


def cell_of(seeds: list[int], shift: float = 0.0, **more: object) -> dict:
    """A recorded cell whose score says which seed it belongs to."""
    scores = [90.0 + seed + shift for seed in seeds]
    own = {"task": "K=3", "method": "softmax", "seeds": seeds, "test": scores}
    return {**own, "wrong": [[seed] for seed in seeds], "settings": {"beta": 1.0}, **more}


@settings(max_examples=60, deadline=None)
@given(SEEDS, SEEDS)
def test_a_later_run_adds_its_seeds(old, new):
    """The new run's where both have a seed; each score stays with its seed."""
    before, after = {"cells": [cell_of(old)]}, {"cells": [cell_of(new, 0.5)]}
    (cell,) = merged(before, after)["cells"]
    assert cell["seeds"] == sorted({*old, *new})
    for seed, score, wrong in zip(cell["seeds"], cell["test"], cell["wrong"], strict=True):
        assert score == 90.0 + seed + (0.5 if seed in new else 0.0)
        assert wrong == [seed]


def test_other_settings_replace_and_other_cells_stay():
    other = {**cell_of([0]), "task": "fox"}
    before = {"what": "areas", "cells": [cell_of([0, 1, 2]), other]}
    after = {"cells": [cell_of([5], settings={"beta": 2.0})]}
    found = merged(before, after)
    assert found == {"what": "areas", "cells": [*after["cells"], other]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(50, 100), min_size=2, max_size=8), st.data())
def test_runs_of_which_only_the_mean_is_known_count_as_if_all_were(scores, data):
    cut = data.draw(st.integers(1, len(scores)))
    known, rest = scores[:cut], scores[cut:]
    earlier = {
        "seeds": list(range(cut)),
        "mean": fmean(known),
        "deviation": stdev(known) if cut > 1 else 0.0,
    }
    seeds = list(range(cut, len(scores)))
    runs = runs_of({"seeds": seeds, "test": rest, "earlier": earlier})
    expected = (len(scores), fmean(scores), stdev(scores))
    assert runs == pytest.approx(expected, abs=1e-6)


def test_earlier_runs_count_until_all_of_them_are_there():
    earlier = {"seeds": [0, 1], "mean": 50.0, "deviation": 0.0}
    assert runs_of({"seeds": [], "test": []}) is None
    assert runs_of({"seeds": [], "test": [], "earlier": earlier}) == (2, 50.0, 0.0)
    # A part of the earlier seeds would count twice.
    assert runs_of({"seeds": [0], "test": [90.0], "earlier": earlier}) == (2, 50.0, 0.0)
    both = {"seeds": [0, 1], "test": [90.0, 90.0], "earlier": earlier}
    assert runs_of(both) == (2, 90.0, 0.0)
    (cell,) = merged({"cells": [cell_of([2], earlier=earlier)]}, {"cells": [cell_of([0])]})["cells"]
    assert cell["earlier"] == earlier
    (cell,) = merged({"cells": [cell]}, {"cells": [cell_of([1])]})["cells"]
    assert "earlier" not in cell


def test_table_2_is_recorded_by_seed_and_merged(tmp_path):
    class Tiny(MIL):
        profiles = {  # noqa: RUF012
            "quick": replace(
                MIL.profiles["demo"],
                methods=("softmax", "mean"),
                bags=20,
                held_out=10,
                digits=replace(MIL.profiles["demo"].digits, epochs=1, beta=(0.25, 1.0)),
            )
        }

    paths = []
    for seed in (0, 1):
        run = reproduce(Tiny(), tmp_path / "out", seed=seed)
        paths.append(record(run.folder, tmp_path, merge=True))
    found = Recorded(tmp_path).read("mil-quick")
    assert paths[0] == paths[1]
    for cell in found["cells"]:
        assert cell["seeds"][-1] == 1
        rights = [100 - 10 * len(wrong) for wrong in cell["wrong"]]
        assert cell["test"] == pytest.approx(rights)
    softmax, mean = found["cells"]
    assert len(softmax["search"]["validation"]) == len(softmax["search"]["test"]) == 2
    assert "search" not in mean
