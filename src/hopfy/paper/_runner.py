"""Runs an experiment and leaves its results in a folder."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

import hopfy
from hopfy._files.atomic import replacing
from hopfy.paper._base import Experiment, Figure, Progress, Quiet, Row
from hopfy.paper._processes import helping
from hopfy.paper._store import Store

__all__ = ["Run", "reproduce"]

_RENAMED = {"desk": "laptop", "public": "reference-code"}


@dataclass(frozen=True)
class Run:
    """What `reproduce` leaves behind.

    Attributes:
        experiment: what was run.
        results: what its ``run`` returned.
        rows: the comparison with the paper.
        figures: ``NAME.png`` and ``NAME.svg`` in ``folder``.
        record: what ``results.json`` says besides the results: versions, seed, data, time.
        folder: where everything lies.
    """

    experiment: Experiment[Any]
    results: Mapping[str, Any]
    rows: list[Row]
    figures: list[Figure]
    record: Mapping[str, Any]
    folder: Path

    @property
    def disagreements(self) -> list[Row]:
        """The rows that are further from the paper than their tolerance."""
        return [row for row in self.rows if row.agrees is False]


def reproduce(
    experiment: Experiment[Any],
    out: str | os.PathLike[str] = "hopfy-report",
    *,
    profile: str = "quick",
    seed: int = 0,
    progress: Progress | None = None,
    workers: int = 1,
    so_far: bool = False,
) -> Run:
    """Run ``experiment``, or finish a run that was stopped, in the folder ``out/NAME``.

    Parts that an earlier run with the same profile, seed, data and version has finished are
    read from ``out/NAME/parts``. The folder gets ``results.json`` and the figures. With several
    ``workers`` so many processes share the work, if the experiment can be shared; processes on
    other machines may join by running it in the same folder. ``so_far`` computes nothing and shows
    what they have finished.
    """
    if profile not in experiment.profiles:
        known = ", ".join(experiment.profiles)
        renamed = _RENAMED.get(profile)
        now = f"; it is now called {renamed!r}" if renamed in experiment.profiles else ""
        raise ValueError(f"expected a profile among {known}, got {profile!r}{now}.")
    if workers < 1 or (workers > 1 and not experiment.shared):
        raise ValueError(
            f"expected 1 worker for {experiment.name}, got {workers}."
            if workers > 1
            else f"expected at least 1 worker, got {workers}."
        )
    config = replace(experiment.profiles[profile], seed=seed)
    folder = Path(out) / experiment.name
    _must_be_writable(folder)
    store = _store(experiment, config, folder)
    checksum = store.depends_on["data"]

    begun = time.perf_counter()
    if so_far:
        results = experiment.so_far(config, store)
    else:
        with helping(workers - 1, _help, (experiment, config, folder)):
            results = experiment.run(config, store, progress or Quiet())
    seconds = time.perf_counter() - begun

    record = {
        "experiment": experiment.name,
        "profile": profile,
        "seed": seed,
        "config": asdict(config),
        "data_checksum": checksum,
        "versions": _versions(),
        "threads": torch.get_num_threads(),
        "wall_seconds": round(seconds, 3),
        "parts_computed": store.computed,
        "parts_seconds": round(store.seconds, 3),
    }
    rows = list(experiment.compare(results))
    figures = list(experiment.draw(results, folder))
    run = Run(experiment, results, rows, figures, record, folder)
    _write(run)
    return run


def _store(experiment: Experiment[Any], config: Any, folder: Path) -> Store:
    checksum = experiment.data_checksum(config)
    depends_on = {"config": asdict(config), "data": checksum, "hopfy": hopfy.__version__}
    return Store(folder / "parts", depends_on)


def _help(experiment: Experiment[Any], config: Any, folder: Path) -> None:
    """What a helper process runs: the same experiment, without progress."""
    experiment.run(config, _store(experiment, config, folder), Quiet())


def _must_be_writable(folder: Path) -> None:
    """Learn before hours of work, not after, that the results cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # a name of its own, whoever else is here
        pass


def _versions() -> dict[str, str]:
    return {
        "hopfy": hopfy.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def _write(run: Run) -> None:
    rows = [{**asdict(row), "difference": row.difference, "agrees": row.agrees} for row in run.rows]
    figures = [asdict(figure) for figure in run.figures]
    whole = {**run.record, "results": run.results, "comparison": rows, "figures": figures}
    with replacing(run.folder / "results.json") as file:
        file.write((json.dumps(whole, indent=1) + "\n").encode())
