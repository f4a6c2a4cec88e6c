"""What a view of the explorer is: settings in, a picture, some lines and a program out.

A view knows nothing about browsers. Its settings are a frozen dataclass that is written into the
address of the page and read back from it; whatever comes from there is checked field by field, and
what does not fit is replaced by its default, with a note.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

__all__ = [
    "Button",
    "Choice",
    "Control",
    "Event",
    "Number",
    "Numbers",
    "Shown",
    "Slider",
    "TextBox",
    "View",
    "limited",
]

S = TypeVar("S")
LONGEST_ADDRESS = 8000


@dataclass(frozen=True)
class Event:
    """What a person did to a handle: where it is now, in the numbers of its scales."""

    handle: str
    x: float | None = None
    y: float | None = None
    value: str = ""


@dataclass(frozen=True)
class Control:
    """Something that sets one field; ``group`` joins controls in one box."""

    name: str
    label: str

    def read(self, text: str) -> Any:
        """The field's value from text; ValueError with a message for people."""
        raise NotImplementedError

    def write(self, value: Any) -> str:
        """The field's value as text."""
        return str(value)

    def widget(self, value: Any) -> dict[str, Any]:
        """What the page needs to show it."""
        return {"name": self.name, "label": self.label, "value": self.write(value)}


@dataclass(frozen=True)
class Number(Control):
    """A number between two others, without a widget of its own."""

    low: float
    high: float
    whole: bool = False

    def read(self, text: str) -> Any:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high or (self.whole and number != round(number)):
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(
                f"{self.label}: expected {kind} from {self.low:g} to {self.high:g}, got {text[:20]!r}."
            )
        return int(number) if self.whole else number

    def write(self, value: Any) -> str:
        return f"{value:.6g}"


@dataclass(frozen=True)
class Slider(Number):
    """A number that is moved along a line; ``log`` for factors rather than differences."""

    step: float = 0.01
    log: bool = False

    def widget(self, value: Any) -> dict[str, Any]:
        more = {"low": self.low, "high": self.high, "step": self.step, "log": self.log}
        return {**super().widget(value), "kind": "slider", **more}


@dataclass(frozen=True)
class Choice(Control):
    """One of a few words."""

    options: tuple[str, ...]

    def read(self, text: str) -> str:
        if text not in self.options:
            known = ", ".join(self.options)
            raise ValueError(f"{self.label}: expected one of {known}, got {text[:20]!r}.")
        return text

    def widget(self, value: Any) -> dict[str, Any]:
        return {**super().widget(value), "kind": "choice", "options": list(self.options)}


@dataclass(frozen=True)
class TextBox(Control):
    """A text of limited length."""

    longest: int
    rows: int = 1

    def read(self, text: str) -> str:
        return text.encode("utf-8", "replace").decode()  # half a character could not be written

    def widget(self, value: Any) -> dict[str, Any]:
        kind = {"kind": "text", "rows": self.rows, "longest": self.longest}
        return {**super().widget(value), **kind}


@dataclass(frozen=True)
class Numbers(Control):
    """Several numbers between two others, separated by commas."""

    low: float
    high: float
    fewest: int
    most: int

    def read(self, text: str) -> tuple[float, ...]:
        parts = [
            part for part in text[: 40 * self.most].replace(";", ",").split(",") if part.strip()
        ]
        each = Number(self.name, self.label, self.low, self.high)
        if not self.fewest <= len(parts) <= self.most:
            raise ValueError(
                f"{self.label}: expected {self.fewest} to {self.most} numbers, got {len(parts)}."
            )
        return tuple(each.read(part) for part in parts)

    def write(self, value: Any) -> str:
        return ", ".join(f"{each:.4g}" for each in value)

    def widget(self, value: Any) -> dict[str, Any]:
        return {**super().widget(value), "kind": "text", "rows": 1, "longest": 40 * self.most}


@dataclass(frozen=True)
class Button:
    """Something to do; the view's `act` is told its name."""

    name: str
    label: str

    def widget(self) -> dict[str, Any]:
        """What the page needs to show it."""
        return {"kind": "button", "name": self.name, "label": self.label}


@dataclass(frozen=True)
class Shown:
    """What a view shows.

    Attributes:
        picture: SVG text.
        lines: what there is to read below it; "yes:" or "no:" in front colors a line.
        code: a program that computes ``numbers``.
        numbers: JSON-able; the program's ``result`` equals it.
    """

    picture: str
    lines: Sequence[str] = ()
    code: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


class View(ABC, Generic[S]):
    """One page of the explorer.

    Attributes:
        name: in the address of the page.
        title, lead: what it is, and what there is to do; ``short`` names it in the navigation.
        controls_first: whether the controls stand above the picture on a narrow screen.
        fields: the controls of all fields of the settings.
        buttons: things to do.
    """

    name: str
    short: str
    title: str
    lead: str
    controls_first: bool = False
    fields: tuple[Control, ...]
    buttons: tuple[Button, ...] = ()

    @abstractmethod
    def defaults(self) -> S:
        """The settings of a page without any in its address."""

    @abstractmethod
    def show(self, settings: S, width: float, *, fine: bool = True) -> Shown:
        """Everything there is to see; not ``fine`` while something is being dragged."""

    def moved(self, settings: S, event: Event) -> S:  # noqa: ARG002
        """The settings after a handle was moved, pressed or painted."""
        return settings

    def act(self, settings: S, name: str) -> S:  # noqa: ARG002
        """The settings after a button was pressed."""
        return settings

    def checked(self, settings: S) -> tuple[S, list[str]]:
        """Settings that fit together, and notes about what was changed."""
        return settings, []

    def control(self, name: str) -> Control:
        """The control of a field."""
        for each in self.fields:
            if each.name == name:
                return each
        raise ValueError(
            f"expected a field among {[each.name for each in self.fields]}, got {name!r}."
        )

    def changed(self, settings: S, name: str, text: str) -> tuple[S, list[str]]:
        """The settings with one field read from text; a note, and no change, where it does not fit."""
        settings, notes = self._with(settings, name, text)
        settings, more = self.checked(settings)
        return settings, [*notes, *more]

    def _with(self, settings: S, name: str, text: str) -> tuple[S, list[str]]:
        try:
            control = self.control(name)
            text, notes = limited(control, text)
            return replace(settings, **{name: control.read(text)}), notes  # type: ignore[type-var]
        except ValueError as error:
            return settings, [str(error)]

    def read(self, query: str) -> tuple[S, list[str]]:
        """The settings from a page's address, and notes about what could not be read."""
        settings, notes = self.defaults(), []
        if len(query) > LONGEST_ADDRESS:
            return settings, [f"The address is longer than {LONGEST_ADDRESS} characters: not read."]
        for name, text in parse_qsl(query.removeprefix("?"), keep_blank_values=True):
            if any(name == each.name for each in self.fields):
                settings, more = self._with(settings, name, text)
                notes += more
        settings, more = self.checked(settings)
        return settings, [*notes, *more]

    def write(self, settings: S) -> str:
        """The settings for a page's address; defaults are left out."""
        defaults = self.defaults()
        pairs = {}
        for each in fields(settings):  # type: ignore[arg-type]
            value = getattr(settings, each.name)
            if value != getattr(defaults, each.name):
                pairs[each.name] = self.control(each.name).write(value)
        return urlencode(pairs)


def limited(control: Control, text: str) -> tuple[str, list[str]]:
    """The text cut to what a text box may hold, and a note if it was longer."""
    if not isinstance(control, TextBox) or len(text) <= control.longest:
        return text, []
    return text[: control.longest], [
        f"{control.label}: only the first {control.longest} of {len(text)} characters are read."
    ]


Make = Callable[[], View[Any]]
