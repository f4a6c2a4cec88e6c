"""What an experiment is: a configuration, a run, a comparison and pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from hopfy.paper._store import Store

__all__ = ["Config", "Experiment", "Figure", "Grid", "Progress", "Quiet", "Row", "Store"]


@dataclass(frozen=True)
class Config:
    """What a run depends on. Subclasses are frozen dataclasses of numbers, strings and tuples."""

    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One line of a comparison: our number beside the published one, or a claim that holds or not.

    >>> Row("size 1", ours=69.24, paper=69.2, tol=0.1).agrees
    True
    >>> Row("size 1", ours=70.0, paper=69.2, tol=0.1).agrees
    False
    """

    name: str
    ours: float
    paper: float | None = None
    tol: float | None = None
    claim: bool = False

    @classmethod
    def of_claim(cls, name: str, holds: bool, *, judged: bool = True) -> Row:
        """A claim that holds or does not; people see yes or no.

        >>> Row.of_claim("the energy never rises", True).shown()
        ('yes', 'yes', '')
        """
        return cls(name, float(holds), 1.0, 0.0 if judged else None, claim=True)

    def shown(self) -> tuple[str, str, str] | None:
        """What stands in the columns ours, paper and difference of a claim; None for numbers."""
        if not self.claim:
            return None
        return "yes" if self.ours else "no", "yes", ""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None where the paper has no number."""
        return None if self.paper is None else self.ours - self.paper

    @property
    def agrees(self) -> bool | None:
        """Whether the difference is within the tolerance; None where there is nothing to judge."""
        if self.difference is None or self.tol is None:
            return None
        rounding = 1e-9 * max(1.0, abs(self.tol))
        return abs(self.difference) <= self.tol + rounding


@dataclass(frozen=True)
class Figure:
    """One picture of an experiment: ``NAME.png`` and ``NAME.svg`` lie in its folder."""

    name: str
    caption: str


@dataclass(frozen=True)
class Grid:
    """A small table for the report, besides the comparison: headings and lines of text."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


class Progress(Protocol):
    """Where a run tells how far it is."""

    def begin(self, label: str, total: float, cost: float | None = None) -> None:
        """Work called ``label`` starts; ``total`` units of it lie ahead.

        Where units take unequal time, ``cost`` is what all of them take together, on any scale.
        """

    def advance(self, amount: float = 1.0, cost: float | None = None) -> None:
        """So many more units are done (also when they came from the store), and what they cost."""


class Quiet:
    """Progress that is not shown."""

    def begin(self, label: str, total: float, cost: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0, cost: float | None = None) -> None: ...


C = TypeVar("C", bound=Config)


class Experiment(ABC, Generic[C]):
    """One experiment. Its module in this package is its name and ends with ``experiment = ...``.

    Attributes:
        name: the module's name, as in ``hopfy reproduce NAME``.
        title: a line for headings.
        profiles: a configuration for ``"quick"`` (no data needed) and for ``"paper"``; perhaps also
            for ``"laptop"``, about an hour on one core, and for ``"demo"``, where quick takes longer
            than the seconds that ``hopfy demo`` has.
        shared: whether processes that run it in the same folder share the work.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    profiles: ClassVar[Mapping[str, Any]]
    shared: ClassVar[bool] = False

    def data_checksum(self, config: C) -> str | None:  # noqa: ARG002
        """Identifies the data that ``config`` reads; None if it reads none."""
        return None

    @abstractmethod
    def run(self, config: C, store: Store, progress: Progress) -> dict[str, Any]:
        """The results, as JSON-able data.

        Every piece of work that is worth keeping goes through
        ``store.part("its name", lambda: ...)``, which returns what an earlier run has finished.
        """

    def so_far(self, config: C, store: Store) -> dict[str, Any]:  # noqa: ARG002
        """The results of what is finished, without computing anything, where that makes sense."""
        raise ValueError(f"expected an experiment that has partial results, got {self.name}.")

    @abstractmethod
    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        """Our numbers beside the published ones."""

    def grids(self, results: Mapping[str, Any]) -> Sequence[Grid]:  # noqa: ARG002
        """Tables that a reader takes in at a glance; none by default."""
        return ()

    def recorded(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        """What of the results is kept in the repository; all of it by default."""
        return results

    def merged(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """A new record together with what an old one has beyond it; by default the new one alone."""
        return new

    @abstractmethod
    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        """Write the pictures into ``folder`` and say what they show."""

    @abstractmethod
    def explain(self, results: Mapping[str, Any]) -> str:
        """A short explanation for the report."""
