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
    """Answers of independent implementations, see golden/README.md."""
    return Path(__file__).parent / "golden"
