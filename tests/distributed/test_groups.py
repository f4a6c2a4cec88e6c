"""Groups of processes: trees, quarrels, and the device that collectives run on."""

from __future__ import annotations

import pytest

from judges import groups
from judges.processes import Processes


def test_a_tree_joins_what_an_all_gather_joins(processes: Processes) -> None:
    processes.run(groups.joins_by_tree)


@pytest.mark.parametrize("how", ["raises", "raises below", "dies"])
def test_a_failure_in_a_tree_reaches_all(how: str) -> None:
    group = Processes(4, timeout=90)
    try:
        group.start(groups.joins_that_fail, how)
        for name, text, seconds in group.answers([0, 1, 3]):
            if how == "dies":
                assert name == "LostProcessError", text
            else:
                assert name in ("MemoryError", "RemoteError"), text
                assert "no memory left to join" in text
            assert seconds < 20
    finally:
        group.close()
