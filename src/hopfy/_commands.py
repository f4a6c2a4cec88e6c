"""What the command line does, one function for each command.

The console prints text as it is: no path or name is read as markup.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import typer.core
from rich import box
from rich.table import Table

import hopfy
from hopfy.paper.terminal import (
    ShownProgress,
    ShownStatus,
    comparison_table,
    plain_console,
    summary,
)

__all__ = ["app"]


class _ListingGroup(typer.core.TyperGroup):
    """A group whose help ends with everything that can be named on the command line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        typer.echo(_listing())


class _ListingCommand(typer.core.TyperCommand):
    """The same for a command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        typer.echo(_listing())


def _listing() -> str:
    """Experiments with their profiles, bench subjects and data sets; read only when help is asked for."""
    from hopfy import paper
    from hopfy.bench import SUBJECTS
    from hopfy.paper.data import datasets

    lines = ["Experiments (hopfy reproduce NAME --profile PROFILE):"]
    for name in paper.names():
        try:
            experiment = paper.load(name)
        except ImportError as missing:
            lines.append(f"  {name:<10} needs {missing.name}: pip install 'hopfy[experiments]'")
            continue
        lines.append(f"  {name:<10} {experiment.title}")
        lines.append(f"  {'':<10} profiles: {', '.join(experiment.profiles)}")
    lines.append(f"Bench subjects (hopfy bench NAME ...): {', '.join(SUBJECTS)}")
    lines.append(f"Data sets (hopfy data list): {', '.join(d.name for d in datasets())}")
    return "\n".join(lines)


app = typer.Typer(
    cls=_ListingGroup,
    help="Sparse and structured Hopfield networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="List and download data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = plain_console()


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hopfy {hopfy.__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Sparse and structured Hopfield networks."""


@app.command("warm-up")
def warm_up() -> None:
    """Compile all kernels before they are first used, for container images and clusters."""
    from hopfy._warm_up import warm_up

    with ShownStatus(console, "compiling") as status:
        count = warm_up(lambda name: status.say(f"compiling: {name}"))
    console.print(
        f"{count} groups of operations are compiled; later processes start without compiling."
    )


@app.command(cls=_ListingCommand)
def bench(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(help="Subjects, or SUBJECT/PART for one part; by default all but gpu."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the JSON records.")] = Path("benchmarks"),
) -> None:
    """Time hopfy against torch and other packages, after checking the answers."""
    from hopfy.bench import NEED_A_GPU, PARTS, SUBJECTS, table_lines, to_paste

    for subject in subjects or [name for name in SUBJECTS if name not in NEED_A_GPU]:
        whole = subject.partition("/")[0]
        if subject not in SUBJECTS and subject not in PARTS:
            parts = [name for name in PARTS if name.startswith(f"{whole}/")]
            raise _error(f"expected one of {', '.join(parts or SUBJECTS)}, got {subject!r}.", 2)
        with ShownStatus(console, subject) as status:
            measured = _measure(subject, status.say)
        rows = [_fields(row) for row in measured]
        typer.echo("\n".join([subject, "", *table_lines(rows, console.width), ""]))
        path = out / f"{whole}.json"
        _record(path, {"rows": _others(path, rows) + rows if subject in PARTS else rows})
        if subject in NEED_A_GPU:
            typer.echo(f"Please paste this table into an issue:\n\n{to_paste(measured)}")


def _measure(subject: str, say: Callable[[str], None]) -> list[Any]:
    """The rows of a subject or a part; one line says what is missing for those that need a GPU."""
    from hopfy.bench import NEED_A_GPU, PARTS, SUBJECTS

    if subject in PARTS:
        return PARTS[subject]()
    try:
        return SUBJECTS[subject](say)
    except RuntimeError as error:
        if subject in NEED_A_GPU:
            raise _error(f"{subject}: {error}", 1) from None
        raise


def _others(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The recorded rows that a part does not replace."""
    if not path.exists():
        return []
    names = {row["name"] for row in rows}
    return [row for row in json.loads(path.read_text())["rows"] if row["name"] not in names]


def _fields(row: Any) -> dict[str, Any]:
    """The fields of a row by name; what was not measured, NaN, is None, as JSON has no NaN."""
    plain = asdict(row) if is_dataclass(row) and not isinstance(row, type) else row._asdict()
    return {name: None if value != value else value for name, value in plain.items()}


@app.command()
def explore(
    port: Annotated[
        int,
        typer.Option(
            help="Port on localhost; if it is in use, another one is chosen.", min=0, max=65535
        ),
    ] = 5006,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Explore maps, memories, digits, attention and rationales in the browser."""
    from hopfy.app import explore

    try:
        explore(port=port, browser=browser)
    except (ImportError, OSError) as error:
        raise _error(str(error)) from None
    except KeyboardInterrupt:
        console.print("stopped")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the results.")] = Path(
        "hopfy-report"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Recall damaged digits, run a quick version of every experiment, and write one HTML page."""
    threads = torch.get_num_threads()
    # All problems here are small: threads would only wait for each other.
    torch.set_num_threads(1)
    try:
        page = _write_demo(out, seed)
    except OSError as error:
        raise _error(f"cannot use {error.filename or out}: {error.strerror}.") from None
    except (ImportError, ValueError) as error:
        raise _error(str(error)) from None
    finally:
        torch.set_num_threads(threads)
    console.print(f"\nThe page: {page}\n\nTry next:", soft_wrap=True)
    for command in _NEXT:
        console.print(f"  {command}", soft_wrap=True)


def _write_demo(out: Path, seed: int) -> Path:
    from hopfy import paper
    from hopfy.paper import demo
    from hopfy.paper.report import section_of, write_page

    out.mkdir(parents=True, exist_ok=True)
    with ShownStatus(console, "recalling damaged digits (the first run compiles the maps)"):
        section = demo.section(demo.recall_digits(seed))
    console.print(_plain_table(section.title, section.tables[0]))
    sections = [section, _rationales_section()]
    for name in paper.names():
        experiment = paper.load(name)
        profile = "demo" if "demo" in experiment.profiles else "quick"
        with ShownProgress(console) as progress:
            run = paper.reproduce(experiment, out, profile=profile, seed=seed, progress=progress)
        console.print(summary(run), soft_wrap=True)
        sections.append(section_of(run))
    return write_page(out / "index.html", _TITLE, _LEAD, sections, _NEXT)


_REVIEWS = (
    "The first hour drags and the plot makes no sense, but the acting is wonderful and the ending is "
    "genuinely moving.",
    "A funny, touching and beautifully filmed story that stays with you.",
    "Two good jokes cannot save this dull and lifeless mess.",
    "It is not a great film, but it is never boring, and the children loved it.",
    "A clever idea, wasted on flat characters and a predictable script.",
)


def _rationales_section() -> Any:
    """Sentences written for the page, and the words from which a shipped model judges them."""
    from hopfy.app import rationale_model
    from hopfy.paper.report import Section

    found = rationale_model().rationale(list(_REVIEWS))
    return Section(
        "words",
        "The words that decided",
        "A classifier of film reviews that predicts from three tenths of the words, selected by "
        "sequential k-subsets. It comes with hopfy and was trained on 6,920 sentences of the "
        "Stanford Sentiment Treebank; these five were written for this page.",
        fragment=found._repr_html_(),
        notes=["hopfy explore shows the same model for a text of your own."],
    )


_TITLE = "hopfy: sparse and structured Hopfield networks"
_PAPER = (
    "One experiment of Santos, Niculae, McNamee, Martins: Sparse and Structured Hopfield Networks "
    "(ICML 2024), beside what the paper says."
)
_LEAD = (
    "What this library does, shown with the data that scikit-learn brings and with generated data: "
    "the quick profiles of the paper's experiments (Santos, Niculae, McNamee, Martins: Sparse and "
    "Structured Hopfield Networks, ICML 2024), beside what the paper says."
)
_NEXT = (
    "hopfy explore                          # maps and memories in the browser",
    "hopfy reproduce fig3 --profile paper   # the figures as large as the paper's",
    "hopfy data list                        # data sets, and how to get them",
    "hopfy reproduce table1 --profile paper # Table 1 on MNIST, every published cell",
    "hopfy bench                            # how fast the maps are",
)


_NAMES = ("damage", "map")


def _plain_table(title: str, content: Any) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading, *cells in zip(content.headings, *content.lines, strict=True):
        if heading in _NAMES:  # names wrap between words, numbers never
            longest = max(len(word) for cell in cells for word in cell.split())
            table.add_column(heading, min_width=longest)
        else:
            table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for line in content.lines:
        table.add_row(*line)
    return table


@app.command(cls=_ListingCommand)
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or all; they are listed below.")],
    profile: Annotated[
        str, typer.Option(help="How much to compute; the profiles are listed below.")
    ] = "quick",
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("hopfy-report"),
    workers: Annotated[int, typer.Option(help="Number of processes that share the work.")] = 1,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Show finished results; compute nothing.")
    ] = False,
) -> None:
    """Run an experiment of the paper and compare its numbers with the published ones.

    A run that was stopped continues where it stopped.
    """
    from hopfy import paper

    if name != "all" and name not in paper.names():
        known = ", ".join([*paper.names(), "all"])
        raise _error(f"expected an experiment among {known}, got {name!r}.")
    chosen = paper.names() if name == "all" else [name]
    options = {"profile": profile, "seed": seed, "workers": workers, "so_far": so_far}
    failed = [one for one in chosen if not _reproduced(one, out, options)]
    if failed:
        raise typer.Exit(1)


def _reproduced(name: str, out: Path, options: dict[str, Any]) -> bool:
    """Run one experiment and show it; False, with a message on stderr, if something is wrong."""
    from hopfy import paper
    from hopfy.paper.data import MissingDataError
    from hopfy.paper.report import section_of, write_page

    try:
        with ShownProgress(console) as progress:
            run = paper.reproduce(paper.load(name), out, progress=progress, **options)
    except KeyboardInterrupt:
        raise _error(f"{name} was stopped; the same command continues from here.", 130) from None
    except OSError as error:
        typer.echo(f"{name}: cannot use {error.filename or out}: {error.strerror}.", err=True)
        return False
    except (MissingDataError, ImportError, ValueError) as error:
        typer.echo(f"{name}: {error}", err=True)
        return False
    console.print(comparison_table(run))
    console.print(run.experiment.explain(run.results))
    console.print(summary(run), soft_wrap=True)
    page = write_page(
        run.folder / "index.html", f"hopfy reproduce {name}", _PAPER, [section_of(run)]
    )
    console.print(f"The page: {page}", soft_wrap=True)
    if run.disagreements:
        count = len(run.disagreements)
        typer.echo(
            f"{name}: {count} numbers differ from the paper by more than their tolerance.", err=True
        )
    return not run.disagreements


@data_app.command("list")
def data_list() -> None:
    """Show every data set and where it is stored."""
    from hopfy.paper.data import datasets

    table = Table()
    for heading in ("name", "what", "size", "where"):
        table.add_column(heading, overflow="fold")
    for one in datasets():
        where = one.where()
        place = _how_to_get(one) if where is None else str(where)
        table.add_row(one.name, one.title, _size(one), place)
    console.print(table)


def _size(one: Any) -> str:
    return f"{one.size / 1e6:.1f} MB"


def _how_to_get(one: Any) -> str:
    """What a user has to do for a data set that is not on this machine."""
    if one.mirrors:
        return f"not here: hopfy data fetch {one.name}"
    return f"not here, by hand: {one.source}, in $HOPFY_DATA/{one.name}"


@data_app.command("fetch")
def data_fetch(
    name: Annotated[
        str | None, typer.Argument(help="A data set; without a name, show which can be downloaded.")
    ] = None,
) -> None:
    """Download a data set, or check the files that are already here."""
    from hopfy.paper.data import MissingDataError, dataset

    if name is None:
        console.print(_what_can_be_fetched(), soft_wrap=True)
        return
    try:
        folder = dataset(name).fetch()
    except OSError as error:
        raise _error(f"cannot use {error.filename}: {error.strerror}.") from None
    except (MissingDataError, ValueError) as error:
        raise _error(str(error)) from None
    console.print(f"{name} is complete in {folder}", soft_wrap=True)


def _what_can_be_fetched() -> str:
    """Data sets that a command downloads, and those that a user has to get, where and why."""
    from hopfy.paper.data import datasets

    fetched = [one for one in datasets() if one.mirrors]
    by_hand = [one for one in datasets() if not one.mirrors]
    lines = ["Downloaded by hopfy, with a checksum:"]
    lines += [f"  hopfy data fetch {one.name}   {one.title} ({_size(one)})" for one in fetched]
    lines.append("To be obtained by hand, as files in $HOPFY_DATA/NAME:")
    for one in by_hand:
        files = ", ".join(file.name for file in one.files)
        lines += [
            f"  {one.name}: {one.title} ({_size(one)})",
            f"    here:  {one.where() or 'no'}",
            f"    files: {files}",
            f"    where: {one.source}",
            f"    why:   {one.why}",
        ]
    return "\n".join(lines)


def _error(message: str, code: int = 1) -> typer.Exit:
    """Print what is wrong to stderr; raise what is returned to end the command."""
    typer.echo(message, err=True)
    return typer.Exit(code)


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
    console.print(f"recorded in {path}", soft_wrap=True)
