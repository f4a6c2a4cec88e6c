"""What the command line does, one function for each command."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated, Any

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
    out: Annotated[Path, typer.Option(help="Folder for the JSON record.")] = Path("benchmarks"),
) -> None:
    """Time the maps against torch.softmax and the entmax package, after checking their answers."""
    from hopfy.bench import bench_maps

    with console.status("warming up") as status:
        rows = bench_maps(lambda text: status.update(text))
    table = Table(title="ratios of times (geometric means over shapes and scales)")
    for heading in ("map", "forward / softmax", "forward+backward / softmax's", "entmax / ours"):
        table.add_column(heading, justify="left" if heading == "map" else "right")
    table.add_column("32 x 64 call", justify="right")
    table.add_column("largest error", justify="right")
    for row in rows:
        faster = "-" if row.faster_than_entmax is None else f"{row.faster_than_entmax:.0f}x"
        table.add_row(
            row.name,
            f"{row.forward:.2f}",
            f"{row.forward_backward:.2f}",
            faster,
            f"{row.small_call_microseconds:.0f} us",
            f"{row.worst_error:.0e}",
        )
    console.print(table)
    _record(out / "maps.json", {"rows": [asdict(row) for row in rows]})


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
