"""The explorer in a real browser."""

from __future__ import annotations

import statistics
from urllib.parse import urlparse


def check_local(visit) -> None:
    """Every request went to this machine, and nothing was complained about."""
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


def test_a_page_opens_drags_and_loads_nothing_from_elsewhere(visit):
    visit.open("maps")
    visit.drag("score:3", 0, -60)
    assert "scores=" in visit.page.url
    tell(visit, "maps, smoke")
    check_local(visit)
