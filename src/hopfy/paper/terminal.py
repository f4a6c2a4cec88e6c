"""Progress and comparisons in a terminal (needs rich)."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopfy.paper._base import Row
from hopfy.paper._runner import Run

__all__ = ["ShownProgress", "ShownStatus", "comparison_table", "plain_console", "summary"]

_SPEED_WINDOW = 600.0
"""Seconds of the past that tell the time left: one part alone may take minutes."""
_LINES = 10
"""Lines about a run whose output is not a terminal."""
_PAUSE = 5.0
"""Seconds between two lines about work of unknown length, where the output is not a terminal."""


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: paths and names with brackets or colons are no markup."""
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False, stderr=stderr)


class ShownProgress:
    """A progress bar with the time left, as a context manager; some lines where it is piped."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=console,
            speed_estimate_period=_SPEED_WINDOW,
            disable=not console.is_terminal,
        )
        self._task: bars.TaskID | None = None
        self._lines = 0

    def __enter__(self) -> ShownProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begin(self, label: str, total: float) -> None:
        self._task, self._lines = self._bars.add_task(label, total=total), 0

    def advance(self, amount: float = 1.0) -> None:
        if self._task is None:
            return
        self._bars.advance(self._task, amount)
        if not self._console.is_terminal:
            self._say(next(task for task in self._bars.tasks if task.id == self._task))

    def _say(self, task: bars.Task) -> None:
        """A line for every tenth of the work."""
        total = task.total or 1.0
        lines = int(_LINES * task.completed / total)
        if lines > self._lines:
            self._lines = lines
            self._console.print(f"{task.description}: {task.completed:g} of {total:g}")


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spinner.__exit__(kind, error, trace)

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
