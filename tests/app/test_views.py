"""What the views compute and draw, without a browser."""

from __future__ import annotations

import dataclasses
import json
import math
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

pytest.importorskip("PIL", reason="the explorer needs hopfy[explore]")
pytest.importorskip("sklearn")

from hopfy.app._session import Session
from hopfy.app._view import Event
from hopfy.app._views import views

VIEWS = {view.name: view for view in views()}
CASES = [
    ("maps", ""),
    ("maps", "scores=2,1,0&temperature=0.1"),
    ("maps", "scores=0,0,0,0&k=3&alpha=1&norm=1.5"),
    ("maps", "scores=3,-3&k=1&transition=-1"),
]
NASTY = '<script>alert(1)</script> & "quotes" \x00\u202e\ud800 ' + "x" * 50


def same(one: object, other: object) -> bool:
    """Whether two JSON-able values are equal, numbers up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


@pytest.mark.parametrize(("name", "query"), CASES)
def test_the_exported_code_computes_the_shown_numbers(name, query, capsys):
    view = VIEWS[name]
    settings, notes = view.read(query)
    assert notes == []
    shown = view.show(settings, 800.0)
    namespace: dict[str, object] = {}
    exec(compile(shown.code, "exported.py", "exec"), namespace)
    assert shown.numbers
    assert same(json.loads(json.dumps(namespace["result"])), json.loads(json.dumps(shown.numbers)))
    assert capsys.readouterr().out


@pytest.mark.parametrize(("name", "query"), CASES)
@pytest.mark.parametrize("width", [240.0, 362.0, 1100.0])
def test_every_picture_is_well_formed_and_fits(name, query, width):
    view = VIEWS[name]
    for fine in (True, False):
        shown = view.show(view.read(query)[0], width, fine=fine)
        root = ElementTree.fromstring(shown.picture)
        assert float(root.get("width")) == width
        tags = {each.tag.rpartition("}")[2] for each in root.iter()}
        assert tags <= {"svg", "style", "rect", "circle", "line", "polyline", "text", "image",
                        "clipPath", "path", "g", "title"}  # fmt: skip
        assert "NaN" not in shown.picture
        assert "nan" not in shown.picture.split("</style>")[1].split("data:")[0]


@pytest.mark.parametrize(("name", "query"), CASES)
def test_settings_come_back_from_the_address(name, query):
    view = VIEWS[name]
    settings, _ = view.read(query)
    again, notes = view.read(view.write(settings))
    assert notes == []
    assert again == settings


@pytest.mark.parametrize("name", VIEWS)
def test_every_field_has_a_control(name):
    view = VIEWS[name]
    assert {each.name for each in view.fields} == {
        each.name for each in dataclasses.fields(view.defaults())
    }


@pytest.mark.parametrize("name", VIEWS)
def test_hostile_fields_change_nothing_or_are_shown_as_text(name):
    view = VIEWS[name]
    for control in view.fields:
        for text in (NASTY, "", "nan", "inf", "-1e999", "1," * 5000, "9" * 400, "é" * 100_000):
            page = Session(view)
            message = {"type": "change", "name": control.name, "text": text, "number": 3}
            shown = page.receive(message)
            assert shown["number"] == 3
            assert "<script" not in shown["picture"]
            ElementTree.fromstring(shown["picture"])
            assert all(len(note) < 400 for note in shown["notes"])
            json.dumps(shown).encode()
            quoted = quote(text.encode("utf-8", "replace"))
            view.read(f"{control.name}={quoted}")


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": None},
        {"type": "move"},
        {"type": "move", "name": "score:99", "y": 1.0},
        {"type": "move", "name": "pattern:-1", "x": 1e300, "y": math.nan},
        {"type": "move", "name": 7, "x": "1", "y": []},
        {"type": "press", "name": "pick:10000000000000000000000"},
        {"type": "paint", "cells": [["pixel:99:99", "1"], ["pixel:a:b", "z"]]},
        {"type": "paint", "cells": [["x"]]},
        {"type": "paint", "cells": 5},
        {"type": "act", "name": "__class__"},
        {"type": "change", "name": "__class__", "text": "1"},
        {"type": "size", "width": 1e9},
        {"type": "size", "width": "wide"},
        {"type": "start", "query": "?" + "a=1&" * 100_000, "width": -3},
    ],
    ids=str,
)
def test_messages_that_make_no_sense_leave_a_page_that_works(name, message):
    page = Session(VIEWS[name])
    shown = page.receive(message)
    ElementTree.fromstring(shown["picture"])
    assert page.receive({"type": "size", "width": 500, "number": 2})["notes"] == []


@pytest.mark.parametrize("name", VIEWS)
def test_an_error_in_a_view_is_a_note(name, monkeypatch):
    view = type(VIEWS[name])()
    page, show = Session(view), view.show

    def fails_once(*arguments, **options):
        monkeypatch.setattr(view, "show", show)
        raise RuntimeError("no luck")

    monkeypatch.setattr(view, "show", fails_once)
    shown = page.receive({"type": "size", "width": 500})
    assert shown["notes"] == ["This could not be computed: no luck"]


class TestMaps:
    """Scores and maps."""

    def test_every_regularizer_of_the_library_is_shown(self):
        import inspect

        from hopfy import omega
        from hopfy.app._maps import MapSettings, omegas

        known = {
            each
            for each in vars(omega).values()
            if inspect.isclass(each)
            and issubclass(each, omega.Omega)
            and not inspect.isabstract(each)
        }
        assert {type(each) for each in omegas(MapSettings())} == known

    def test_dragging_a_score_changes_it_within_limits(self):
        view = VIEWS["maps"]
        moved = view.moved(view.defaults(), Event("score:1", y=2.345))
        assert moved.scores[1] == 2.35 or moved.scores[1] == 2.34
        assert view.moved(moved, Event("score:0", y=1e9)).scores[0] == 3.0

    def test_answers_agree_with_the_margin(self):
        from hopfy.app._maps import MapSettings, answer, omegas

        for each in omegas(MapSettings()):
            found = answer(each, (3.0, 0.0, -1.0, -2.0), 0.05)
            if math.isinf(found.margin):
                assert not found.exact
            elif found.lead >= found.margin and found.support == 1:
                assert found.exact

    def test_k_stays_below_the_number_of_scores(self):
        settings, notes = VIEWS["maps"].read("k=5&scores=1,0,2")
        assert settings.k == 2
        assert "at most 2" in notes[-1]
