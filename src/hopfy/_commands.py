"""What the command line does, one function for each command."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table

import hopfy

__all__ = ["app"]

app = typer.Typer(
    help="Sparse and structured Hopfield networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.callback()
def _about() -> None:
    """Sparse and structured Hopfield networks."""


@app.command()
def bench(
    subjects: Annotated[list[str] | None, typer.Argument(help="Which; all by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the JSON records.")] = Path("benchmarks"),
) -> None:
    """Time hopfy against torch and other packages, after checking the answers."""
    from hopfy.bench import SUBJECTS

    for subject in subjects or list(SUBJECTS):
        if subject not in SUBJECTS:
            _fail(f"expected one of {', '.join(SUBJECTS)}, got {subject!r}.")
        with console.status(subject) as status:
            rows = [_fields(row) for row in SUBJECTS[subject](status.update)]
        table = Table(title=subject)
        for heading in rows[0]:
            table.add_column(heading.replace("_", " "), justify="right")
        for row in rows:
            table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
        console.print(table)
        _record(out / f"{subject}.json", {"rows": rows})


def _fields(row: Any) -> dict[str, Any]:
    return asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row._asdict())


def _fail(sentence: str) -> NoReturn:
    Console(stderr=True).print(sentence, style="red")
    raise typer.Exit(2)


def _record(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "hopfy": hopfy.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "date": date.today().isoformat(),
    }
    path.write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")
    console.print(f"recorded in {path}")
