"""Campaigns run in `make fuzz` only, which says how long: they look for new cases in every run."""

from __future__ import annotations

import os

# Without a time limit there is nothing to collect here, whatever pytest is asked to run.
collect_ignore_glob = [] if os.environ.get("FUZZ_SECONDS") else ["test_*.py"]
