"""Progress and comparisons in a terminal (needs rich)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopfy.paper._base import Row
from hopfy.paper._runner import Run

__all__ = [
    "ShownProgress",
    "ShownStatus",
    "TimeLeft",
    "comparison_table",
    "plain_console",
    "summary",
]

_INSTANT = 0.05
"""Seconds below which the first units were found, not computed: they tell nothing about the rest."""
_LINES = 10
"""Lines about a run whose output is not a terminal."""
_PAUSE = 5.0
"""Seconds between two lines about work of unknown length, where the output is not a terminal."""


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: paths and names with brackets or colons are no markup."""
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, stderr=stderr)


class TimeLeft:
    """How long the rest of the work takes, judged by what was computed and not found finished.

    Units that an earlier run finished come first and take no time. From the first one that takes
    some, all of them count, quick ones too.

    Args:
        clock: seconds.

    >>> ticks = iter([0.0, 0.001, 0.002, 60.0, 120.0])
    >>> left = TimeLeft(lambda: next(ticks))
    >>> left.begin(6)
    >>> [left.advance() for _ in range(4)]  # two units from an earlier run, then a minute for each
    ['', '', 'about 3 minutes left', 'about 2 minutes left']
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._total, self._done = 0.0, 0.0
        self._computed, self._seconds, self._last = 0.0, 0.0, 0.0

    def begin(self, total: float) -> None:
        """So many units lie ahead."""
        self._total, self._done = total, 0.0
        self._computed, self._seconds, self._last = 0.0, 0.0, self._clock()

    def advance(self, amount: float = 1.0) -> str:
        """So many units more are done; the rest in words, empty as long as nothing was computed."""
        now = self._clock()
        took, self._last = now - self._last, now
        self._done += amount
        if self._computed or took >= _INSTANT:
            self._computed += amount
            self._seconds += took
        if not self._computed or self._done >= self._total:
            return ""
        return in_words((self._total - self._done) * self._seconds / self._computed)


def in_words(seconds: float) -> str:
    """
    >>> in_words(20), in_words(90), in_words(9000), in_words(200_000)
    ('about 20 seconds left', 'about 2 minutes left', 'about 2.5 hours left', 'about 2.3 days left')
    """
    for size, name, digits in ((86400.0, "days", 1), (3600.0, "hours", 1), (60.0, "minutes", 0)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.{digits}f} {name} left"
    return f"about {seconds:.0f} seconds left"


class ShownProgress:
    """A progress bar with the time left, as a context manager; some lines where it is piped."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("{task.fields[left]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: bars.TaskID | None = None
        self._lines = 0
        self._left, self._told = TimeLeft(), False

    def __enter__(self) -> ShownProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, label: str, total: float, cost: float | None = None) -> None:
        self._task, self._lines = self._bars.add_task(label, total=total, left=""), 0
        self._left.begin(total if cost is None else cost)

    def advance(self, amount: float = 1.0, cost: float | None = None) -> None:
        if self._task is None:
            return
        left = self._left.advance(amount if cost is None else cost)
        self._bars.update(self._task, advance=amount, left=left)
        if not self._console.is_terminal:
            self._say(next(task for task in self._bars.tasks if task.id == self._task), left)

    def _say(self, task: bars.Task, left: str) -> None:
        """A line for every tenth of the work, and one for the first unit that was computed."""
        total = task.total or 1.0
        lines = int(_LINES * task.completed / total)
        if lines > self._lines or (left and not self._told):
            self._lines, self._told = lines, bool(left)
            rest = f", {left}" if left else ""
            self._console.print(f"{task.description}: {task.completed:g} of {total:g}{rest}")


class ShownStatus:
    """What is being done, as a context manager: a spinner, or a line now and then where it is piped."""

    def __init__(self, console: Console, text: str) -> None:
        self._console = console
        spinner: AbstractContextManager[Any] = nullcontext()
        if console.is_terminal:
            spinner = console.status(Text(text))
        self._spinner, self._text, self._told = spinner, text, 0.0

    def __enter__(self) -> ShownStatus:
        self._spinner.__enter__()
        self.say(self._text)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._spinner.__exit__(*failure)

    def say(self, text: str) -> None:
        """What comes next."""
        if self._console.is_terminal:
            self._spinner.update(Text(text))  # type: ignore[attr-defined]
        elif time.monotonic() >= self._told + _PAUSE or not self._told:
            self._told = time.monotonic()
            self._console.print(text, soft_wrap=True)


def comparison_table(run: Run) -> Table:
    """Ours, the paper's, the difference, and a mark beside each number that disagrees."""
    profile = run.record["profile"]
    table = Table(title=f"{run.experiment.title} ({profile} profile)")
    table.add_column("number")
    for heading in ("ours", "paper", "difference"):
        table.add_column(heading, justify="right")
    table.add_column("agrees")
    for row in run.rows:
        marks = {True: Text("yes"), False: Text("NO", style="bold red"), None: Text()}
        table.add_row(Text(row.name), *(row.shown() or _numbers(row)), marks[row.agrees])
    return table


def _numbers(row: Row) -> tuple[str, str, str]:
    paper = "-" if row.paper is None else f"{row.paper:g}"
    difference = "-" if row.difference is None else f"{row.difference:+.2f}"
    return f"{row.ours:.2f}", paper, difference


def summary(run: Run) -> str:
    """One line: how many of the judged numbers agree, and where the results are."""
    judged = sum(row.agrees is not None for row in run.rows)
    agree = judged - len(run.disagreements)
    verdict = f"{agree} of {judged} comparisons agree" if judged else "nothing to judge here"
    return f"{run.experiment.name}: {verdict}; see {run.folder / 'results.json'}"
