"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The same examples in every run, so that a change is what breaks a test; HYPOTHESIS_PROFILE=search
# looks for new ones.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Answers of independent implementations; skipped where the folder is not beside the checkout."""
    folder = Path(os.environ.get("HOPFY_DATA") or "missing").parent / "golden"
    if not folder.is_dir():
        pytest.skip("the golden answers are not beside this checkout (HOPFY_DATA is unset)")
    return folder
