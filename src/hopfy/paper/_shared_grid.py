"""Work through a list of settings together with other processes, on this machine or on others.

The list is a study of optuna in a journal file: every process that opens the same file takes points
that no other process has taken, and all see all results. What a killed process had taken is done again.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

__all__ = ["SharedGrid"]

_POINT, _RESULT, _WORKER = "point", "result", "worker"
# Seconds after which work of another machine that has not come back counts as lost.
_LOST = 3600.0
# Seconds that a process may need to sign what it has taken.
_UNSIGNED = 5.0
_POLL = 0.2

Point = Mapping[str, Any]


class SharedGrid:
    """Points of a grid and their results, shared through ``journal``.

    Args:
        journal: a file; every process that opens it takes part.
        name: of the grid. Whatever the results depend on belongs into it.
        points: the grid, the same in every process.

    >>> import tempfile
    >>> journal = Path(tempfile.mkdtemp()) / "journal"
    >>> grid = SharedGrid(journal, "squares", [{"x": 2}, {"x": 3}])
    >>> grid.work(lambda point: {"y": point["x"] ** 2})
    >>> grid.results()
    [{'y': 4}, {'y': 9}]
    """

    def __init__(self, journal: Path, name: str, points: Sequence[Point]) -> None:
        self._optuna = _optuna()
        journal.parent.mkdir(parents=True, exist_ok=True)
        storages = self._optuna.storages
        backend = storages.journal.JournalFileBackend(str(journal))
        self.points = list(points)
        self._study = self._optuna.create_study(
            storage=storages.JournalStorage(backend), study_name=name, load_if_exists=True
        )

    def work(self, compute: Callable[[Point], Mapping[str, Any]], *, wait: bool = True) -> None:
        """Compute the points that no process works on; with ``wait``, until every point has its result.

        The number of a trial is unique among all processes, so the first trials are the points in
        their order; later ones repeat what was lost.
        """
        while self._started() < len(self.points):
            self._try(compute)
        while missing := self._missing():
            lost = [number for number in missing if not self._in_work(number)]
            if lost:
                self._try(compute, lost[0])
            elif wait:
                time.sleep(_POLL)
            else:
                return

    def results(self) -> list[Any] | None:
        """The result of every point, in the order of the points; None if some are missing."""
        found: dict[int, Any] = {}
        for trial in self._trials("COMPLETE"):
            found.setdefault(trial.user_attrs[_POINT], json.loads(trial.user_attrs[_RESULT]))
        complete = len(found) == len(self.points)
        return [found[number] for number in sorted(found)] if complete else None

    def _try(self, compute: Callable[[Point], Mapping[str, Any]], again: int | None = None) -> None:
        states = self._optuna.trial.TrialState
        trial = self._study.ask()
        number = trial.number if again is None else again
        if number >= len(self.points):  # another process was faster
            self._study.tell(trial, state=states.FAIL)
            return
        trial.set_user_attr(_POINT, number)
        trial.set_user_attr(_WORKER, _myself())
        try:
            result = json.dumps(compute(self.points[number]))
        except Exception:
            self._study.tell(trial, state=states.FAIL)
            raise
        trial.set_user_attr(_RESULT, result)
        self._study.tell(trial, 0.0)

    def _started(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def _missing(self) -> list[int]:
        done = {trial.user_attrs[_POINT] for trial in self._trials("COMPLETE")}
        return [number for number in range(len(self.points)) if number not in done]

    def _in_work(self, number: int) -> bool:
        return any(
            trial.user_attrs.get(_POINT, trial.number) == number and _alive(trial)
            for trial in self._trials("RUNNING")
        )

    def _trials(self, state: str) -> Any:
        states = (self._optuna.trial.TrialState[state],)
        return self._study.get_trials(deepcopy=False, states=states)


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError:
        raise ImportError("this needs optuna: pip install 'hopfy[experiments]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _myself() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _alive(trial: Any) -> bool:
    """Whether someone still works on a trial: known on this machine, guessed on others."""
    host, _, process = trial.user_attrs.get(_WORKER, "").rpartition(" ")
    age: float = (datetime.now() - trial.datetime_start).total_seconds()
    if not process:
        return age < _UNSIGNED
    if host != socket.gethostname() or sys.platform == "win32":  # there, kill would really kill
        return age < _LOST
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()
