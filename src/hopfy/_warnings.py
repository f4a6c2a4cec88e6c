"""The warnings that hopfy gives, so that they can be filtered by class."""

from __future__ import annotations

__all__ = ["ConvergenceWarning", "NoKnownWordsWarning"]


class ConvergenceWarning(UserWarning):
    """An iteration stopped at its limit, before its tolerance was reached."""


class NoKnownWordsWarning(UserWarning):
    """A text is empty, or has no word that the model knows: there is nothing to predict from."""
