"""The explorer in a real browser: drag, slide, draw, type, share, export; on a phone, in the dark."""

from __future__ import annotations

import statistics
from pathlib import Path
from urllib.parse import urlparse
from xml.etree import ElementTree

import pytest

from hopfy.app._views import views

VIEWS = [view.name for view in views()]
NASTY = '<img src=x onerror="document.title=1"><script>document.title=2</script> & \u202e "'


def check_local(visit) -> None:
    """Every request went to this machine, and nothing was complained about."""
    assert visit.requests
    for address in visit.requests:
        parts = urlparse(address)
        assert parts.scheme in ("blob", "data") or parts.hostname == "localhost", address
    assert visit.errors == []


def tell(visit, what: str) -> None:
    """Print how long answers took; a loose bound catches what would feel broken."""
    times = visit.latencies()
    middle = statistics.median(times)
    print(f"{what}: {len(times)} answers, median {middle:.0f} ms, largest {max(times):.0f} ms")
    assert middle < 2000


def picture(visit) -> str:
    return visit.page.locator(".picture").inner_html()


def test_a_page_opens_drags_and_loads_nothing_from_elsewhere(visit):
    visit.open("maps")
    visit.drag("score:3", 0, -60)
    assert "scores=" in visit.page.url
    tell(visit, "maps, smoke")
    check_local(visit)


@pytest.mark.slow
class TestMaps:
    def test_drag_slide_and_keys(self, visit):
        visit.open("maps")
        before = picture(visit)
        visit.drag("score:0", 0, 40, steps=12)
        assert picture(visit) != before
        visit.slide("temperature", 0.2)
        assert "temperature=" in visit.page.url
        visit.slide("alpha", 3.0)
        assert "3-entmax" in picture(visit)
        visit.handle("score:1").focus()
        for _ in range(5):
            visit.page.keyboard.press("ArrowUp")
        visit.settled()
        focused = visit.page.evaluate(
            "document.querySelector('*') && [...document.querySelectorAll('*')]"
            ".map(e => e.shadowRoot?.activeElement?.dataset?.handle).find(Boolean)"
        )
        assert focused == "score:1"
        visit.drag("temperature:0", 40, 0)
        tell(visit, "maps")
        check_local(visit)

    def test_a_shared_address_shows_the_same(self, visit):
        visit.open("maps?scores=2,1,0,-1&temperature=0.3&alpha=1.2&k=3")
        one = picture(visit)
        visit.drag("score:2", 0, -30)
        shared, two = visit.page.url, picture(visit)
        assert one != two
        visit.page.goto("about:blank")
        visit.page.goto(shared)
        visit.page.wait_for_selector('[data-ready="yes"]')
        assert picture(visit) == two

    def test_bad_settings_are_told(self, visit):
        visit.open("maps?temperature=-5&k=zzz&scores=1,2,<script>")
        notes = visit.page.locator(".notes").inner_text()
        assert "Temperature" in notes
        assert "k of the subsets" in notes
        visit.write("scores", "1, 2, nonsense")
        assert "Scores" in visit.page.locator(".notes").inner_text()
        visit.write("scores", "1, 2, 3")
        assert visit.page.locator(".notes").inner_text() == ""
        check_local(visit)


@pytest.mark.slow
class TestPlane:
    def test_drag_patterns_and_the_cue(self, visit):
        visit.open("plane")
        visit.drag("cue", -120, 90, steps=12)
        assert "cue=" in visit.page.url
        visit.drag("pattern:1", 60, 40, steps=12)
        assert "patterns=" in visit.page.url
        visit.slide("beta", 0.9)
        for omega in ("softmax", "5-normmax", "2-subsets"):
            visit.page.locator('select[data-name="omega"]').select_option(omega)
            visit.settled()
            assert f"omega={omega}" in visit.page.url
        visit.page.locator('select[data-name="state"]').select_option("ball")
        visit.settled()
        assert "Euclidean" in visit.page.locator(".lines").inner_text()
        tell(visit, "plane, energy")
        check_local(visit)

    def test_basins_steps_and_buttons(self, visit):
        visit.open("plane?background=basins&beta=6")
        visit.drag("pattern:0", -50, 50, steps=12)
        for name in ("first", "next", "next", "add", "remove"):
            visit.page.locator(f'button[data-name="{name}"]').click()
            visit.settled()
        assert "step=2" in visit.page.url
        tell(visit, "plane, basins")
        check_local(visit)

    def test_the_keyboard_moves_the_cue(self, visit):
        visit.open("plane?cue=0,0")
        visit.handle("cue").focus()
        for _ in range(4):
            visit.page.keyboard.press("ArrowRight")
            visit.settled()
        assert "cue=0.2%2C+0" in visit.page.url


@pytest.mark.slow
class TestDigits:
    def test_pick_damage_and_draw(self, visit):
        visit.open("digits")
        visit.handle("pick:7").click()
        visit.settled()
        assert "digit=7" in visit.page.url
        for damage in ("covered", "half missing", "two at once"):
            visit.page.locator('select[data-name="damage"]').select_option(damage)
            visit.settled()
        assert "2-subsets" in visit.page.locator(".lines").inner_text()
        visit.slide("beta", 0.9)
        visit.page.locator('button[data-name="blank"]').click()
        visit.settled()
        visit.handle("pixel:63").scroll_into_view_if_needed()
        visit.handle("pixel:0").scroll_into_view_if_needed()
        boxes = [visit.handle(f"pixel:{n}").bounding_box() for n in (10, 18, 26, 34, 42, 50)]
        middle = [(b["x"] + b["width"] / 2, b["y"] + b["height"] / 2) for b in boxes]
        visit.page.mouse.move(*middle[0])
        visit.page.mouse.down()
        for place in middle[1:]:
            visit.page.mouse.move(*place, steps=3)
            visit.page.wait_for_timeout(30)
        visit.page.mouse.up()
        visit.settled()
        drawn = visit.page.url.split("drawn=")[1].split("&")[0]
        assert [n for n, shade in enumerate(drawn) if shade == "g"] == [10, 18, 26, 34, 42, 50]
        tell(visit, "digits")
        check_local(visit)

    def test_the_keyboard_paints(self, visit):
        visit.open("digits?drawn=" + "0" * 64)
        visit.handle("pixel:0").focus()
        for key in ("ArrowRight", "ArrowDown", "Enter"):
            visit.page.keyboard.press(key)
        visit.settled()
        assert visit.page.url.split("drawn=")[1].startswith("000000000g0")


@pytest.mark.slow
class TestTexts:
    @pytest.mark.parametrize("name", ["attention", "rationales"])
    def test_hostile_and_huge_texts_are_shown_as_text(self, visit, name):
        visit.open(name)
        title = visit.page.title()
        visit.write("text", NASTY)
        assert visit.page.title() == title
        assert visit.page.locator(".picture img, .picture script").count() == 0
        visit.write("text", "word " * 20_000)
        assert "only the first" in visit.page.locator(".notes").inner_text()
        visit.write("text", "")
        visit.write("text", "\u05d0\u05d1 電影 \U0001f600 e\u0301")
        visit.write("text", "A wonderful, funny film with a weak ending.")
        assert "wonderful" in picture(visit)
        tell(visit, f"{name}, texts")
        check_local(visit)

    def test_alpha_makes_attention_sparse(self, visit):
        visit.open("attention?alpha=1")
        dense = picture(visit).count("fill-opacity")
        for alpha in (1.2, 1.4, 1.6, 1.8, 2.0):
            visit.slide("alpha", alpha)
        assert picture(visit).count("fill-opacity") < dense
        visit.handle("word:2").first.click()
        visit.settled()
        assert "word=2" in visit.page.url
        tell(visit, "attention")

    def test_the_transition_joins_words(self, visit):
        visit.open("rationales")
        for transition in (0.2, 0.5, 1.0, 1.5):
            visit.slide("transition", transition)
        visit.page.locator('select[data-name="example"]').select_option("cold")
        visit.settled()
        assert "negative" in picture(visit)
        tell(visit, "rationales")


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
class TestEveryView:
    def test_exports(self, visit, name, tmp_path):
        visit.open(name)
        found = {}
        for kind in ("svg", "png", "python"):
            with visit.page.expect_download() as caught:
                visit.page.locator(f'.toolbar button[data-name="{kind}"]').click()
            found[kind] = tmp_path / caught.value.suggested_filename
            caught.value.save_as(found[kind])
        ElementTree.parse(found["svg"])
        assert found["png"].read_bytes().startswith(b"\x89PNG")
        assert found["png"].stat().st_size > 5000
        program = found["python"].read_text("utf-8")
        assert program == visit.page.locator(".code pre").text_content()
        compile(program, found["python"].name, "exec")
        visit.page.locator('.toolbar button[data-name="copy-code"]').click()
        visit.page.wait_for_function("document.hasFocus()")
        assert visit.page.evaluate("navigator.clipboard.readText()") == program
        check_local(visit)

    @pytest.mark.parametrize("width", [390, 1280])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_it_fits_a_phone_and_a_desk_in_light_and_dark(
        self, explorer, chromium, name, width, scheme, tmp_path
    ):
        context = chromium.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, has_touch=width < 500
        )
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{explorer}/{name}")
        page.wait_for_selector('[data-ready="yes"]')
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.locator(".page").evaluate("e => getComputedStyle(e).backgroundColor")
        assert ground == ("rgb(23, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
        ink = page.locator(".picture text").first.evaluate("e => getComputedStyle(e).fill")
        assert ink != ground
        page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
        assert Path(tmp_path / "page.png").stat().st_size > 10_000
        context.close()

    def test_everything_can_be_reached_with_the_tab_key(self, visit, name):
        visit.open(name)
        reached = set()
        for _ in range(160):
            visit.page.keyboard.press("Tab")
            reached.add(
                visit.page.evaluate(
                    "[...document.querySelectorAll('*')].map(e => e.shadowRoot?.activeElement)"
                    ".filter(Boolean).map(e => e.dataset.name || e.dataset.handle || e.tagName)[0]"
                    " ?? ''"
                )
            )
            if "svg" in reached:
                break
        wanted = visit.page.locator(".controls [data-name]").evaluate_all(
            "all => all.map(e => e.dataset.name)"
        )
        assert set(wanted) <= reached | {""}
        assert {"svg"} <= reached
