"""The warnings that hopfy gives, so that they can be filtered by class."""

from __future__ import annotations

__all__ = ["ConvergenceWarning"]


class ConvergenceWarning(UserWarning):
    """An iteration stopped at its limit, before its tolerance was reached."""
