"""Tables of measurements for terminals and files: nothing is cut off, lines keep to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["table_lines"]

_GAP = "  "


class _Column(NamedTuple):
    heading: list[str]  # its words
    cells: list[str]
    is_name: bool

    @property
    def least(self) -> int:
        """The width below which a word or a number would be cut."""
        words = (
            [word for cell in self.cells for word in cell.split()] if self.is_name else self.cells
        )
        return max(map(len, [*self.heading, *words]))

    @property
    def natural(self) -> int:
        return max(map(len, [*self.heading, *self.cells]))


def table_lines(rows: Sequence[dict[str, Any]], width: int = 80) -> list[str]:
    """Lines of at most ``width`` characters, where words and numbers permit it.

    Names wrap between words and headings too; columns that do not fit beside each other follow in
    a second table below, with the names again.

    Examples
    --------
    >>> rows = [{"map": "1.5-entmax of long rows", "size": 512, "time_ms": 0.25}]
    >>> for line in table_lines(rows, width=30):
    ...     print("|", line)
    |                      time
    | map            size    ms
    | -------------------------
    | 1.5-entmax of   512  0.25
    | long rows
    """
    columns = [_column(name, [row[name] for row in rows]) for name in rows[0]]
    names = [column for column in columns if column.is_name]
    numbers = [column for column in columns if not column.is_name]
    widths = _name_widths(names, width // 2 if numbers else width)
    lines: list[str] = []
    for block in _blocks(numbers, width - sum(widths) - len(_GAP) * len(names)):
        lines += [""] if lines else []
        lines += _block_lines([*names, *block], [*widths, *(each.least for each in block)])
    return lines


def _column(name: str, values: list[Any]) -> _Column:
    is_name = any(isinstance(value, str) for value in values)
    return _Column(name.split("_"), [_text(value) for value in values], is_name)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"
    return str(value)


def _name_widths(names: list[_Column], room: int) -> list[int]:
    """As wide as they are, or less until they fit: the widest gives way first."""
    widths = [column.natural for column in names]
    while sum(widths) + len(_GAP) * len(names) > room:
        spare = [(w, place) for place, w in enumerate(widths) if w > names[place].least]
        if not spare:
            break
        widths[max(spare)[1]] -= 1
    return widths


def _blocks(columns: list[_Column], room: int) -> Iterator[list[_Column]]:
    """The columns in groups that fit into the room, one at least in each."""
    block: list[_Column] = []
    used = 0
    for column in columns:
        more = column.least + len(_GAP)
        if block and used + more > room:
            yield block
            block, used = [], 0
        block.append(column)
        used += more
    yield block


def _block_lines(columns: list[_Column], widths: list[int]) -> list[str]:
    headings = [
        textwrap.wrap(" ".join(column.heading), width)
        for column, width in zip(columns, widths, strict=True)
    ]
    deepest = max(map(len, headings))
    bottom = [[""] * (deepest - len(words)) + words for words in headings]
    lines = _stacked(columns, widths, bottom)
    lines.append("-" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    for place in range(len(columns[0].cells)):
        cells = [
            textwrap.wrap(column.cells[place], width, break_on_hyphens=False) or [""]
            for column, width in zip(columns, widths, strict=True)
        ]
        lines += _stacked(columns, widths, cells)
    return lines


def _stacked(columns: list[_Column], widths: list[int], cells: list[list[str]]) -> list[str]:
    """The lines of one row whose cells have several lines."""
    lines = []
    for depth in range(max(map(len, cells))):
        words = []
        for column, width, cell in zip(columns, widths, cells, strict=True):
            word = cell[depth] if depth < len(cell) else ""
            words.append(word.ljust(width) if column.is_name else word.rjust(width))
        lines.append(_GAP.join(words).rstrip())
    return lines
