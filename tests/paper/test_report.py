"""The page is one file that loads nothing; the demo writes it."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from hopfy.paper.report import Picture, Section, Table, page, write_page
from hopfy.structures import SequentialKSubsets

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
NASTY = '<script>alert("x")</script> & "quotes"'


class Addresses(HTMLParser):
    """Everything that a browser would load or follow."""

    def __init__(self):
        super().__init__()
        self.found, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "data")]


def sections():
    table = Table(["", "ours"], [[NASTY, "1"]] * 2, ["yes", "no"], "two numbers")
    return [
        Section("one", NASTY, NASTY, [Picture(PNG, NASTY)], [table], [NASTY]),
        Section("two", "Second", "text", [], [Table(["a", "b"], [["1", "2"]] * 20, (), "many")]),
    ]


def check_self_contained(text):
    parser = Addresses()
    parser.feed(text)
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in parser.found)
    assert not {"script", "link", "iframe", "object"} & set(parser.tags)
    assert not re.search(r"url\(|@import", text)


def test_the_page_loads_nothing_and_escapes_everything():
    text = page(NASTY, NASTY, sections(), [NASTY])
    check_self_contained(text)
    assert "alert(" in text
    assert "<script" not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_marks_are_shown_and_long_tables_are_folded():
    text = page("t", "l", sections())
    assert '<td class="yes">yes</td>' in text
    assert '<td class="no">no</td>' in text
    assert text.count("<details>") == 1
    assert "<summary>many</summary>" in text


def test_claims_are_yes_or_no():
    from hopfy.paper import Row
    from hopfy.paper.report._page import _comparison

    rows = [Row.of_claim("holds", True), Row.of_claim("fails", False), Row("one", 1.0, 1.0, 0.0)]
    table = _comparison(rows)
    assert [line[1:] for line in table.lines] == [
        ["yes", "yes", ""],
        ["no", "yes", ""],
        ["1", "1", "0"],
    ]
    assert list(table.marks) == ["yes", "no", "yes"]


def test_wide_tables_say_that_they_scroll_and_pictures_have_a_dark_version():
    wide = Table(list("abcdef"), [["1"] * 6])
    text = page("t", "l", [Section("s", "S", "t", [Picture(PNG, "c", PNG[:40])], [wide])])
    assert text.count('<p class="hint">') == 1
    assert '<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,' in text
    check_self_contained(text)
    narrow = page("t", "l", [Section("s", "S", "t", [], [Table(["a"], [["1"]])])])
    assert '<p class="hint">' not in narrow


def test_a_darkened_figure_is_light_ink_on_dark_paper(tmp_path):
    import io

    import numpy as np
    from matplotlib import image

    from hopfy.paper._drawing import canvas, save

    figure = canvas(3, 2)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#0072B2")
    axes.set_title("title")
    save(figure, tmp_path, "one")
    light, dark = (
        image.imread(io.BytesIO((tmp_path / f"one{kind}.png").read_bytes()))[..., :3]
        for kind in ("", "-dark")
    )
    assert np.median(light) == 1
    assert np.median(dark) < 0.12
    blue = np.array([0, 0x72, 0xB2]) / 255
    for pixels in (light, dark):
        assert np.abs(pixels - blue).max(-1).min() < 0.02


def test_the_page_is_written_where_it_says(tmp_path):
    place = write_page(tmp_path / "new" / "index.html", "t", "l", sections())
    assert place == (tmp_path / "new" / "index.html").resolve()
    assert place.read_text("utf-8").startswith("<!doctype html>")


def test_digits_come_back_exactly_with_sparse_maps_and_never_with_softmax():
    pytest.importorskip("sklearn")
    from hopfy.paper import demo

    shown = demo.recall_digits()
    by = {(one.damage, one.recalled_by): one for one in shown.outcomes}
    for damage in ("noise", "covered", "half missing"):
        assert by[damage, "softmax"].exact == 0
        assert by[damage, "sparsemax"].exact > 80
        assert by[damage, "sparsemax"].certified == 100
        assert by[damage, "memory"].exact >= by[damage, "sparsemax"].exact
    assert by["two at once", "2-subsets"].exact == 100
    assert by["neighbors", SequentialKSubsets(2, 2.0).name].right > 80
    assert all(one.after < one.before for one in shown.outcomes if one.before is not None)
    text = page("t", "l", [demo.section(shown)])
    check_self_contained(text)
    assert text.count("<img") == 3


@pytest.mark.slow
def test_the_demo_writes_a_page_about_every_experiment(tmp_path):
    pytest.importorskip("sklearn")
    testing = pytest.importorskip("typer.testing")
    from hopfy import paper
    from hopfy._commands import app

    result = testing.CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "index.html") in result.output.replace("\n", "")
    assert "hopfy reproduce" in result.output
    text = (tmp_path / "index.html").read_text("utf-8")
    check_self_contained(text)
    for name in paper.names():
        assert f'id="{name}"' in text
        assert paper.load(name).title in text


def test_a_demo_that_cannot_write_says_so_before_it_works(tmp_path):
    testing = pytest.importorskip("typer.testing")
    from hopfy._commands import app

    (tmp_path / "file").write_text("")
    result = testing.CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file" / "folder")])
    assert result.exit_code != 0
    assert "cannot use" in result.output
