"""A running explorer and a real browser; skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def explorer() -> Iterator[str]:
    """``hopfy explore --no-browser`` in a process of its own; its address without the page."""
    pytest.importorskip("panel", reason="the explorer needs hopfy[explore]")
    pytest.importorskip("typer")
    call = [sys.executable, "-m", "hopfy", "explore", "--no-browser", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOPFY_QUIET": "1"}
    process = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://localhost:\d+", process.stdout.readline())
        assert found is not None
        yield found.group()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, or the one that CHROMIUM names, driven by Playwright."""
    driver = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    if program is None:
        pytest.skip("no chromium is installed (apt-get install chromium)")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page of the explorer, and everything it asked for or complained about."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.set_default_timeout(60_000)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def open(self, path: str) -> Visit:
        """Go to a view and wait until it is drawn."""
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_selector('[data-ready="yes"]')
        return self

    def settled(self) -> None:
        """Wait until every message is answered and the address is written."""
        self.page.wait_for_timeout(50)
        self.page.wait_for_function("hopfyIdle()")

    def handle(self, name: str) -> Any:
        """A handle of the picture."""
        return self.page.locator(f'[data-handle="{name}"]')

    def drag(self, name: str, dx: float, dy: float, steps: int = 6) -> None:
        """Move a handle by so many pixels."""
        self.handle(name).scroll_into_view_if_needed()
        box = self.handle(name).bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        for step in range(1, steps + 1):
            self.page.mouse.move(x + dx * step / steps, y + dy * step / steps)
            self.page.wait_for_timeout(40)
        self.page.mouse.up()
        self.settled()

    def slide(self, name: str, value: float) -> None:
        """Put a slider's knob somewhere."""
        self.page.locator(f'input[data-name="{name}"]').evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }",
            value,
        )
        self.settled()

    def write(self, name: str, text: str) -> None:
        """Type into a field."""
        self.page.locator(f'[data-name="{name}"]').fill(text)
        self.settled()

    def latencies(self) -> list[float]:
        """Milliseconds from every message to the picture that answers it, but for the first."""
        return list(self.page.evaluate("hopfyLatencies"))[1:]


@pytest.fixture
def visit(explorer: str, chromium: Any) -> Iterator[Visit]:
    """A fresh page, 1280 pixels wide."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield Visit(context.new_page(), explorer)
    context.close()
