"""Tables of measured numbers, from their JSON files to Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Columns of each record: the key in the JSON file, the heading, how a number is written.
Column = tuple[str, str, str]
RECORDS: dict[str, list[Column]] = {
    "maps": [
        ("name", "map", ""),
        ("forward", "forward / softmax", ".2f"),
        ("forward_backward", "with backward / softmax", ".2f"),
        ("faster_than_entmax", "times faster than `entmax`", ".0f"),
        ("small_call_microseconds", "small call, µs", ".0f"),
        ("worst_error", "largest error", ".0e"),
    ],
    "layers": [
        ("name", "what", ""),
        ("ours", "hopfy", ".3g"),
        ("theirs", "torch", ".3g"),
        ("unit", "unit", ""),
        ("ratio", "ratio", ".2f"),
    ],
    "retrieval": [
        ("name", "what", ""),
        ("milliseconds", "ms", ".3g"),
        ("to_product", "to product", ".2f"),
        ("to_faiss", "to faiss", ".2f"),
    ],
    "memory": [
        ("name", "what", ""),
        ("threads", "threads", "d"),
        ("milliseconds", "ms", ".3g"),
        ("to_product", "to product", ".2f"),
        ("to_retrieve", "to `retrieve`", ".2f"),
        ("to_faiss", "to faiss", ".2f"),
        ("to_usearch", "to usearch", ".2f"),
    ],
    "sequential": [
        ("n", "N", "d"),
        ("k", "k", "d"),
        ("microseconds", "µs a row", ".1f"),
        ("forward_backward", "with backward / forward", ".2f"),
        ("faster_than_cpp", "times faster than the C++ library's recorded figure", ".0f"),
        ("relative_gap", "relative gap", ".0e"),
    ],
    "structures": [
        ("name", "structure", ""),
        ("rows", "problems", "d"),
        ("shape", "shape", ""),
        ("milliseconds", "forward, ms a problem", ".2f"),
        ("both_milliseconds", "with backward", ".2f"),
        ("torch_struct", "marginals of torch-struct, ms", ".2f"),
        ("oracle_microseconds", "oracle, µs", ".0f"),
        ("gap", "relative gap", ".0e"),
    ],
    "mil": [
        ("name", "what", ""),
        ("batched", "bags per second, 128 in a step", ".0f"),
        ("one_by_one", "one by one with torch's layers", ".0f"),
        ("ratio", "ratio", ".1f"),
    ],
    "rationale": [
        ("name", "what", ""),
        ("ours", "hopfy, s", ".3g"),
        ("theirs", "compared with, s", ".3g"),
        ("ratio", "ratio", ".2f"),
    ],
}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    shown[1] = "|" + "|".join(lines[1]) + "|"
    return "\n".join(shown)


def benchmark(name: str, record: dict[str, Any]) -> str:
    """A record of ``hopfy bench`` as text: when and where it was made, and its rows."""
    machine = record["machine"]
    when = (
        f"Recorded {machine['date']} with hopfy {machine['hopfy']}, torch {machine['torch']}, "
        f"Python {machine['python']}, {machine['processor']}, {machine['threads']} threads."
    )
    columns = RECORDS.get(name) or [(key, key.replace("_", " "), "") for key in record["rows"][0]]
    columns = [column for column in columns if any(column[0] in row for row in record["rows"])]
    rows = [[_cell(row.get(key), style) for key, _, style in columns] for row in record["rows"]]
    return f"{when}\n\n{table([heading for _, heading, _ in columns], rows)}\n"


def _cell(value: Any, style: str) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, list):
        return " x ".join(map(str, value))
    if isinstance(value, float) and not style:
        style = ".3g"
    if style.endswith("g") and abs(value) >= 100:
        style = ".0f"
    return format(value, style) if style else str(value)


def write_tables(folder: Path) -> None:
    """All tables, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {}
    for path in sorted((ROOT / "benchmarks").glob("*.json")):
        texts[f"performance-{path.stem}"] = benchmark(path.stem, _read(path))
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
