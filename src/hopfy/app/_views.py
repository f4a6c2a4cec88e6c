"""All views, in the order of the navigation."""

from __future__ import annotations

from typing import Any

from hopfy.app._attention import AttentionView
from hopfy.app._digits import DigitsView
from hopfy.app._maps import MapsView
from hopfy.app._plane import PlaneView
from hopfy.app._rationales import RationalesView
from hopfy.app._view import View

__all__ = ["views"]


def views() -> list[View[Any]]:
    """One of each."""
    return [MapsView(), PlaneView(), DigitsView(), AttentionView(), RationalesView()]
