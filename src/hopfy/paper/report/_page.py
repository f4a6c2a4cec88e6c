"""From runs to one self-contained HTML page."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import hopfy
from hopfy._files.atomic import replacing
from hopfy.paper import Row, Run

__all__ = ["Picture", "Section", "Table", "page", "section_of", "write_page"]

# Longer comparisons are folded away behind their summary.
_OPEN_ROWS = 8
# Pixels; the letters of wider pictures would be too small on a phone.
_WIDE = 1100


@dataclass(frozen=True)
class Picture:
    """A PNG picture and its caption; ``dark`` is the same picture for a dark page, if there is one."""

    png: bytes
    caption: str
    dark: bytes = b""

    @property
    def address(self) -> str:
        """The picture itself as a data address: the page loads nothing."""
        return _address(self.png)

    @property
    def dark_address(self) -> str:
        """The same for a dark page; empty if there is none."""
        return _address(self.dark) if self.dark else ""

    @property
    def wide(self) -> bool:
        """Whether a phone should scroll over it rather than shrink it."""
        return int.from_bytes(self.png[16:20], "big") > _WIDE  # the width in a PNG's header


def _address(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


@dataclass(frozen=True)
class Table:
    """Headings and lines of text; marks are "yes", "no" or "" for each line.

    A long table with a summary is folded, unless it is to be seen as a ``whole``.
    """

    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    marks: Sequence[str] = ()
    summary: str = ""
    whole: bool = False

    @property
    def folded(self) -> bool:
        """Whether it is shown only on demand."""
        return bool(self.summary) and len(self.lines) > _OPEN_ROWS and not self.whole

    def mark(self, line: int) -> str:
        """The mark of a line, "" where there are none."""
        return self.marks[line] if self.marks else ""


@dataclass(frozen=True)
class Section:
    """One part of the page.

    ``fragment`` is HTML that is put into the page as it is: the output of a template that escapes
    what is not ours, such as `hopfy.estimators.Rationales` makes.
    """

    name: str
    title: str
    text: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    fragment: str = ""


def section_of(run: Run) -> Section:
    """What an experiment found, beside what the paper says."""
    pictures = [
        Picture(
            (run.folder / f"{figure.name}.png").read_bytes(),
            figure.caption,
            _if_there(run.folder / f"{figure.name}-dark.png"),
        )
        for figure in run.figures
    ]
    record = run.record
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    note = (
        f"{record['profile']} profile, seed {record['seed']}, {record['wall_seconds']:.1f} s; "
        f"{versions}."
    )
    tables = [
        Table(grid.headings, grid.lines, summary=grid.title, whole=True)
        for grid in run.experiment.grids(run.results)
    ]
    if run.rows:
        tables.append(_comparison(run.rows))
    text = run.experiment.explain(run.results)
    return Section(run.experiment.name, run.experiment.title, text, pictures, tables, [note])


def _if_there(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def page(title: str, lead: str, sections: Sequence[Section], commands: Sequence[str] = ()) -> str:
    """The whole page as text; everything that is not ours to trust is escaped."""
    from jinja2 import Environment, StrictUndefined

    source = resources.files("hopfy.paper.report").joinpath("page.html.jinja").read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        title=title, lead=lead, sections=sections, commands=commands, version=hopfy.__version__
    )


def write_page(
    path: str | os.PathLike[str],
    title: str,
    lead: str,
    sections: Sequence[Section],
    commands: Sequence[str] = (),
) -> Path:
    """Write the page, whole or not at all; returns where it is."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as file:
        file.write(page(title, lead, sections, commands).encode())
    return place.resolve()


def _comparison(rows: Sequence[Row]) -> Table:
    judged = [row for row in rows if row.agrees is not None]
    agree = sum(row.agrees is True for row in judged)
    lines = [[row.name, *(row.shown() or _numbers(row))] for row in rows]
    verdict = f"{agree} of {len(judged)} comparable ones agree" if judged else "none comparable"
    words = {True: "yes", False: "no", None: ""}
    return Table(
        ["", "ours", "paper or theory", "difference"],
        lines,
        [words[row.agrees] for row in rows],
        f"{len(rows)} numbers, {verdict}",
    )


def _numbers(row: Row) -> tuple[str, str, str]:
    return _number(row.ours), _number(row.paper), _number(row.difference)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.0e}"
