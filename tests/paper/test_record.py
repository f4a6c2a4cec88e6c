"""Recorded results: what is kept, and that nothing is lost."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from hopfy import paper
from hopfy.paper import reproduce
from hopfy.paper.claims import Recorded
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
