"""What the views compute and draw, without a browser."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import warnings
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

pytest.importorskip("PIL", reason="the explorer needs hopfy[explore]")
pytest.importorskip("sklearn")

from hopfy.app._session import Session
from hopfy.app._view import Event
from hopfy.app._views import views
from hopfy.estimators import NoKnownWordsWarning

VIEWS = {view.name: view for view in views()}
CASES = [
    ("maps", ""),
    ("maps", "scores=2,1,0&temperature=0.1"),
    ("maps", "scores=0,0,0,0&k=3&alpha=1&norm=1.5"),
    ("maps", "scores=3,-3&k=1&transition=-1"),
    ("plane", ""),
    ("plane", "omega=softmax&beta=1&background=basins"),
    ("plane", "omega=2-subsets&beta=8&cue=0,0"),
    ("plane", "state=ball&background=basins&omega=1.5-entmax"),
    ("plane", "state=sign&beta=0.2"),
    ("plane", "state=tanh"),
    ("plane", "state=layer-norm&omega=5-normmax"),
    ("plane", "patterns=0,0,0,0,0,0&cue=0,0"),
    ("digits", ""),
    ("digits", "damage=covered&digit=17&amount=0.8"),
    ("digits", "damage=half+missing&digit=4&beta=200"),
    ("digits", "damage=two+at+once&digit=11&seed=2"),
    ("digits", "damage=none&beta=1"),
    ("digits", "drawn=" + "0" * 20 + "g5g5" + "0" * 40),
    ("attention", ""),
    ("attention", "text=&alpha=2"),
    ("attention", "text=dull+%E9%9B%BB+%3Cb%3E+%22film%22&alpha=1.2&head=3&layer=2&word=1"),
    ("rationales", ""),
    ("rationales", "text=&transition=1"),
    ("rationales", "text=zzzqqq+%3Cscript%3E+%E9%9B%BB%E5%BD%B1&transition=0.5"),
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoKnownWordsWarning)
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
        assert not re.search(r'="[^"]*\b(nan|inf)\b', shown.picture.replace("data:", '"'))


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


class TestPlane:
    """Memories in the plane."""

    def test_the_energy_never_rises_and_radii_hold(self):
        import torch

        from hopfy.app._plane import PlaneSettings, network_of, walk

        for omega in ("sparsemax", "1.5-entmax", "5-normmax"):
            settings = PlaneSettings(omega=omega, beta=6.0)
            found = walk(settings)
            assert all(b <= a + 1e-12 for a, b in itertools.pairwise(found.energies))
            network = network_of(settings)
            angles = torch.linspace(0, 6.2, 40, dtype=torch.float64)
            ring = torch.stack([angles.cos(), angles.sin()], -1)
            for number, radius in enumerate(found.radii):
                if radius > 0:
                    cues = network.memories[number] + 0.999 * radius * ring
                    assert torch.equal(
                        network.update(cues), network.memories[number].expand_as(cues)
                    )
            assert any(radius > 0 for radius in found.radii)

    def test_buttons(self):
        view = VIEWS["plane"]
        settings = view.defaults()
        for _ in range(20):
            settings = view.act(settings, "add")
        assert len(settings.patterns) == 24
        view.show(settings, 800.0)
        for _ in range(20):
            settings = view.act(settings, "remove")
        assert len(settings.patterns) == 4
        assert view.act(view.act(settings, "first"), "next").step == 1


class TestDigits:
    """Recalling digits."""

    def test_sparse_maps_recall_exactly_and_softmax_never(self):
        from hopfy.app._digits import DigitSettings, recalls

        found = {each.name: each for each in recalls(DigitSettings(amount=0.3))}
        assert found["softmax"].ids == ()
        for name in ("sparsemax", "1.5-entmax", "5-normmax", "AssociativeMemory"):
            assert found[name].ids == (3,)
            assert found[name].certified

    def test_two_at_once_are_named_by_two_subsets(self):
        from hopfy.app._digits import DigitSettings, cue_of, recalls

        settings = DigitSettings(damage="two at once", beta=60.0)
        found = {each.name: each for each in recalls(settings)}
        assert set(found["2-subsets"].ids) == set(cue_of(settings).truth)

    def test_painting_starts_from_what_is_seen(self):
        view = VIEWS["digits"]
        settings = view.moved(view.defaults(), Event("pixel:5", value="1"))
        assert len(settings.drawn) == 64
        assert settings.drawn[5] == "g"
        assert view.moved(settings, Event("pixel:5", value="0")).drawn[5] == "0"
        assert view.act(settings, "stored").drawn == ""


class TestTexts:
    """Attention and rationales."""

    def test_rows_sum_to_one_and_larger_alphas_have_more_zeros(self):
        from hopfy.app._attention import attend

        zeros = []
        for alpha in (1.0, 1.5, 2.0):
            found = attend("A funny film with a weak ending .", alpha, "1", "mean")
            assert all(math.isclose(sum(row), 1, abs_tol=1e-5) for row in found.weights)
            zeros.append(found.zeros)
        assert zeros[0] == 0 < zeros[1] < zeros[2]

    def test_the_models_are_small_and_as_good_as_they_say(self):
        from hopfy.app._model_files import FOLDER, facts

        assert sum(each.stat().st_size for each in FOLDER.iterdir()) < 2_000_000
        assert facts()["rationales"]["accuracy"] > 0.75
        assert facts()["sentences"]["1.5"] > 0.75

    def test_words_are_placed_inside_the_lines(self):
        from hopfy.app._rationales import explain
        from hopfy.app._rationales_picture import place_words

        text = "A fine film , " + "x" * 300 + " and more\n\nwords " + "電" * 90
        placed = place_words(explain(text, 0.0), 30)
        assert all(0 <= column < 30 for column, _, _ in placed)
        assert [line for _, line, _ in placed] == sorted(line for _, line, _ in placed)

    def test_highlighted_texts_follow_the_dark_preference(self):
        from hopfy.app import rationale_model

        text = rationale_model().explain_html(["a fine film"])
        assert text.count("prefers-color-scheme: dark") == 2
        assert "color-scheme: light dark" in text

    def test_a_larger_transition_gives_longer_phrases(self):
        from hopfy.app._rationales import RationaleSettings, explain

        text = RationaleSettings().text
        assert len(explain(text, 1.5).spans) <= len(explain(text, 0.0).spans)


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
