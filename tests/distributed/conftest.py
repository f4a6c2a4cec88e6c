"""Process groups that are started once and serve all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from judges.processes import Processes


@pytest.fixture(scope="session")
def pool() -> Iterator[Callable[[int], Processes]]:
    """A gloo group of so many processes; a test that breaks one must start its own."""
    made: dict[int, Processes] = {}

    def of(size: int) -> Processes:
        if size not in made:
            made[size] = Processes(size)
        return made[size]

    yield of
    for processes in made.values():
        processes.close()


@pytest.fixture
def three(pool: Callable[[int], Processes]) -> Processes:
    return pool(3)


@pytest.fixture(params=[3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))])
def processes(request: pytest.FixtureRequest, pool: Callable[[int], Processes]) -> Processes:
    return pool(request.param)
