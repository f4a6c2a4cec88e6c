"""Warnings that hopfy gives, as classes that can be filtered."""

from __future__ import annotations

__all__ = ["ConvergenceWarning"]


class ConvergenceWarning(UserWarning):
    """A solver stopped at its iteration limit; the message states how far it was."""
