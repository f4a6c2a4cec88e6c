"""One open page: its settings, and how messages from the browser change them.

It trusts nothing that comes from the browser: a message that is not understood changes nothing, and
whatever goes wrong while a picture is computed becomes a note on the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hopfy.app._view import Event, Shown, View

__all__ = ["Session"]

NARROWEST, WIDEST = 240.0, 2400.0
_MOST_CELLS = 400
_LONGEST_NAME = 60


class Session:
    """The settings of one page and what they show.

    >>> from hopfy.app._maps import MapsView
    >>> page = Session(MapsView())
    >>> page.receive({"type": "change", "name": "temperature", "text": "0.5", "number": 1})["query"]
    'temperature=0.5'
    """

    def __init__(self, view: View[Any]) -> None:
        self.view, self.settings = view, view.defaults()
        self.width = 900.0

    def receive(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What to show after a message."""
        before, fine = self.settings, message.get("fine") is not False
        try:
            self.settings, notes = self._after(message)
            shown = self.view.show(self.settings, self.width, fine=fine)
        except Exception as error:
            self.settings = before
            notes = [f"This could not be computed: {str(error)[:300]}"]
            shown = self._as_before()
        return self._packed(shown, notes, message.get("number"))

    def _as_before(self) -> Shown:
        """The latest settings that worked; the defaults if even those do not."""
        try:
            return self.view.show(self.settings, self.width)
        except Exception:
            self.settings = self.view.defaults()
            return self.view.show(self.settings, self.width)

    def _after(self, message: Mapping[str, Any]) -> tuple[Any, list[str]]:
        kind, name = str(message.get("type")), str(message.get("name", ""))[:_LONGEST_NAME]
        view, settings = self.view, self.settings
        if kind in ("start", "size"):
            self.width = _between(message.get("width"), NARROWEST, WIDEST, self.width)
        if kind == "start":
            return view.read(str(message.get("query", "")))
        if kind == "change":
            return view.changed(settings, name, str(message.get("text", "")))
        if kind == "act" and any(name == each.name for each in view.buttons):
            return view.act(settings, name), []
        if kind in ("move", "press"):
            place = (_number(message.get("x")), _number(message.get("y")))
            return view.moved(settings, Event(name, *place)), []
        if kind == "paint":
            for cell in list(message.get("cells") or ())[:_MOST_CELLS]:
                handle, value = (str(part)[:_LONGEST_NAME] for part in cell)
                settings = view.moved(settings, Event(handle, value=value))
            return settings, []
        return settings, []

    def _packed(self, shown: Shown, notes: list[str], number: Any) -> dict[str, Any]:
        fields = [each.widget(getattr(self.settings, each.name)) for each in self.view.fields]
        return {
            "picture": shown.picture,
            "lines": list(shown.lines),
            "notes": notes,
            "code": shown.code,
            "query": self.view.write(self.settings),
            "widgets": [
                *(each for each in fields if "kind" in each),
                *(each.widget() for each in self.view.buttons),
            ],
            "number": number if isinstance(number, int) else 0,
        }


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    good = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if good else None


def _between(value: Any, low: float, high: float, default: float) -> float:
    number = _number(value)
    return default if number is None else min(max(number, low), high)
