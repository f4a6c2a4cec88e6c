"""Laws that are tried on new random cases until their time is up."""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

LAWS = 6
"""How many campaigns share the time of a run."""
_ROUND = 10
_DATABASE = DirectoryBasedExampleDatabase(Path(".hypothesis") / "fuzz")


def campaign(law: Callable[..., None]) -> Callable[..., None]:
    """A test that gives ``law`` new random numbers for its share of ``FUZZ_SECONDS``.

    Hypothesis shrinks the seed of a case that fails and keeps it in ``.hypothesis/fuzz``: the next
    run begins with it. A case that was found belongs into the tests of its package.
    """

    @pytest.mark.fuzz
    @functools.wraps(law)
    def test(**fixtures: Any) -> None:
        @settings(
            max_examples=_ROUND,
            deadline=None,
            derandomize=False,
            database=_DATABASE,
            suppress_health_check=list(HealthCheck),
        )
        @given(seed=st.integers(0, 1 << 40))
        def one_round(seed: int) -> None:
            law(random.Random(seed), **fixtures)
            count[0] += 1

        count = [0]
        end = time.monotonic() + float(os.environ["FUZZ_SECONDS"]) / LAWS
        while time.monotonic() < end:
            one_round()
        print(f"{law.__name__}: {count[0]} cases")

    # What pytest asks for are the fixtures of the law, without the random numbers.
    names = law.__code__.co_varnames[1 : law.__code__.co_argcount]
    test.__signature__ = _signature(names)  # type: ignore[attr-defined]
    return test


def _signature(names: tuple[str, ...]) -> Any:
    import inspect

    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])
