"""The training runs behind Table 2, shared among processes."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import hopfy
from hopfy.paper._base import Progress, Store
from hopfy.paper._shared_grid import Point, SharedGrid
from hopfy.paper.mil._benchmarks import train_on_benchmark
from hopfy.paper.mil._digits import DigitTask, train_on_digits
from hopfy.paper.mil._grid import Grid

if TYPE_CHECKING:
    from hopfy.paper.mil import MILConfig

__all__ = ["Cell", "Work"]

_SECONDS_OF_A_BAG, _USUAL_EPOCHS = 1 / 300, 10
"""A bag of MNIST digits in training, and the epochs after which networks for these have mostly stopped."""


class Cell(NamedTuple):
    """A task and a method: one number of the table. The task is ``"K=3"`` or an animal."""

    task: str
    method: str


class _UnfinishedError(RuntimeError):
    """A cell has not been run yet."""


class Work:
    """All runs of a configuration, each a point of a `SharedGrid`.

    On the first seed a cell's points are those of its hyperparameter grid; the best of them, by
    its validation score, is run on the other seeds.
    """

    def __init__(self, config: MILConfig, checksum: str, store: Store) -> None:
        self._config, self._checksum, self._store = config, checksum, store
        self._computing = True
        tasks = [f"K={least}" for least in config.least]
        # K = 1 tells least, so the animals, which are fast, come before it.
        tasks = [task for task in tasks if task != "K=1"] + list(config.animals)
        tasks += ["K=1"] if 1 in config.least else []
        self.cells = [Cell(task, method) for task in tasks for method in config.methods]

    def size(self, cell: Cell, run: int) -> int:
        """How many training runs belong to a cell's ``run``-th seed."""
        if run == 0:
            return len(self._space(cell).points(cell.method))
        return 1 if cell.task.startswith("K=") or run == 1 else 0

    def cost(self, cell: Cell, run: int) -> float:
        """About how many seconds of one core the training runs of a cell's ``run``-th seed take."""
        grid = self._space(cell).points(cell.method)
        mean = fmean(self._cost(cell, point) for point in grid)
        if run and not cell.task.startswith("K="):
            return mean * self.size(cell, run) * (self._config.animal_seeds - 1)
        return mean * self.size(cell, run)

    def start(self, cell: Cell, run: int, progress: Progress) -> None:
        """Compute what no process has taken yet of a cell's ``run``-th seed."""
        points, name = self._points(cell, run), _part(cell, run)
        computed, spent = 0, 0.0

        def compute(group: Point) -> dict[str, Any]:
            nonlocal computed, spent
            found = self._compute(cell, group)
            count = len(group["points"])
            cost = sum(self._cost(cell, each) * len(each["seeds"]) for each in group["points"])
            computed, spent = computed + count, spent + cost
            progress.advance(count, cost)
            return found

        if points and not self._store.path(name).is_file():
            self._grid(cell, points).work(compute, wait=False)
        progress.advance(self.size(cell, run) - computed, max(0.0, self.cost(cell, run) - spent))

    def finish(self, cell: Cell, run: int) -> list[dict[str, Any]]:
        """All results of a cell's ``run``-th seed, if need be after waiting for other processes."""
        points = self._points(cell, run)

        def results() -> Any:
            grid = self._grid(cell, points)
            if self._computing:
                grid.work(lambda group: self._compute(cell, group))
            found = grid.results()
            if found is None:
                raise _UnfinishedError
            return [each for group in found for each in group["runs"]]

        return self._store.part(_part(cell, run), results) if points else []

    def results(self, *, so_far: bool = False) -> list[dict[str, Any]]:
        """What the table says; ``so_far`` leaves out what has not been computed yet."""
        self._computing = not so_far
        found = []
        for cell in self.cells:
            with suppress(_UnfinishedError):
                found.append(self._result(cell))
        return found

    def _result(self, cell: Cell) -> dict[str, Any]:
        """Scores of a cell in percent, one for each seed."""
        best = self._best(cell)
        runs = [self._best_result(cell)]
        with suppress(_UnfinishedError):
            for run in range(1, self._config.seeds):
                runs += self.finish(cell, run)
        joined = {
            name: [value for each in runs for value in each.get(name, [])]
            for name in ("validation", "test", "epochs", "right", "folds")
        }
        tried = self.finish(cell, 0)
        seconds = sum(each["seconds"] for each in [*tried, *runs[1:]])
        return {
            **cell._asdict(),
            "seeds": [self._config.seed + run for run in range(len(joined["test"]))],
            **joined,
            "settings": best,
            "tried": len(tried),
            "search": _search(tried) if len(tried) > 1 else {},
            "seconds": seconds,
        }

    def _points(self, cell: Cell, run: int) -> list[dict[str, Any]]:
        """Settings and seeds of the training runs that belong together."""
        first = self._config.seed
        if run == 0:
            return [{**each, "seeds": [first]} for each in self._space(cell).points(cell.method)]
        if cell.task.startswith("K="):
            return [{**self._best(cell), "seeds": [first + run]}]
        # The animals' networks are trained in one stack, so all other seeds come at once.
        others = list(range(first + 1, first + self._config.animal_seeds))
        return [{**self._best(cell), "seeds": others}] if run == 1 and others else []

    def _best(self, cell: Cell) -> dict[str, Any]:
        tried = self.finish(cell, 0)
        scores = [fmean(each["validation"]) for each in tried]
        return self._space(cell).points(cell.method)[scores.index(max(scores))]

    def _best_result(self, cell: Cell) -> dict[str, Any]:
        return max(self.finish(cell, 0), key=lambda each: fmean(each["validation"]))

    def _cost(self, cell: Cell, point: dict[str, Any]) -> float:
        """About how many seconds of one core one seed of a point takes."""
        space = self._space(cell)
        if cell.task.startswith("K="):
            return self._config.bags * min(space.epochs, _USUAL_EPOCHS) * _SECONDS_OF_A_BAG
        return space.cost(point)

    def _space(self, cell: Cell) -> Grid:
        return self._config.digits if cell.task.startswith("K=") else self._config.benchmarks

    def _grid(self, cell: Cell, points: list[dict[str, Any]]) -> SharedGrid:
        journal = self._store.folder.parent / "search.journal"
        groups = [{"points": group} for group in self._groups(cell, points)]
        return SharedGrid(journal, self._name(cell, points), groups)

    def _groups(self, cell: Cell, points: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Neighbors that are trained at once: on the animals, those of the same architecture and
        learning rate. ``beta`` and ``dropout`` are a grid's last axes."""
        if cell.task.startswith("K="):
            return [[point] for point in points]

        def shared(point: dict[str, Any]) -> list[Any]:
            return [each for name, each in point.items() if name not in ("beta", "dropout")]

        return [list(group) for _, group in groupby(points, shared)]

    def _name(self, cell: Cell, points: list[dict[str, Any]]) -> str:
        """It says all that the results depend on, and nothing else: the number of seeds may be
        changed later without losing what was computed. What is off is left out, so that a new
        switch does not lose it either."""
        config = self._config
        size: list[Any] = [config.source, config.bags, config.held_out, config.folds]
        if config.standardize and not cell.task.startswith("K="):
            size.append("standardized")
        space = asdict(self._space(cell))
        space = {name: each for name, each in space.items() if each is not False}
        what = [cell, points, size, space, self._checksum, hopfy.__version__]
        digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        return f"{cell.task} {cell.method} seeds {points[0]['seeds']} {digest}"

    def _compute(self, cell: Cell, group: Point) -> dict[str, Any]:
        """The results of a group of points, each with its share of the time."""
        config, space, points = self._config, self._space(cell), group["points"]
        begun = time.perf_counter()
        models = [space.model(cell.method, point) for point in points]
        training, seeds = space.training(points[0]), points[0]["seeds"]
        if cell.task.startswith("K="):
            least = int(cell.task.removeprefix("K="))
            task = DigitTask(config.source, least, config.bags, config.held_out, seeds[0])
            found = [train_on_digits(task, models[0], training)]
        else:
            found = train_on_benchmark(
                cell.task, seeds, config.folds, models, training, standardize=config.standardize
            )
        seconds = (time.perf_counter() - begun) / len(points)
        return {"runs": [{**each, "seconds": seconds} for each in found]}


def _search(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean scores of all settings on the first seed, in the order of the grid.

    Test scores are kept to see afterward how good a choice was; nothing is chosen by them.
    """
    return {name: [fmean(each[name]) for each in tried] for name in ("validation", "test")}


def _part(cell: Cell, run: int) -> str:
    return f"{cell.task} {cell.method} run {run}"
