"""Tables of measured and published numbers, from their JSON files to Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hopfy.paper._published import METASTABLE_STATES, MIL, MIL_TASKS, RATIONALES, SIZES

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


def table_1() -> str:
    headings = ["size", *(f"{c.omega}, β = {c.beta:g}" for c in METASTABLE_STATES)]
    rows = (
        [size, *(f"{column.percent[n]:.1f}" for column in METASTABLE_STATES)]
        for n, size in enumerate(SIZES)
    )
    return table(headings, rows)


def table_2(recorded: dict[str, Any]) -> str:
    published = {row.omega: row.cells for row in MIL}
    rows = []
    for method, cells in recorded["methods"].items():
        line = [method]
        for n, (mean, deviation) in enumerate(cells):
            theirs = f" ({published[method][n][0]:.1f})" if method in published else ""
            line.append(f"{mean:.1f} ± {deviation:.1f}{theirs}")
        rows.append(line)
    return table(["", *recorded["tasks"]], rows)


def table_2_reference(recorded: dict[str, Any]) -> str:
    published = {row.omega: row.cells for row in MIL}
    rows = []
    for task, numbers in recorded["tasks"].items():
        column = MIL_TASKS.index(task.replace(" ", ""))
        pairs = zip(recorded["methods"], numbers, strict=True)
        rows.append([task, *(f"{n:.1f} ({published[m][column][0]:.1f})" for m, n in pairs)])
    return table(["", *recorded["methods"]], rows)


def table_3(recorded: dict[str, Any]) -> str:
    names = {"SST": "sst", "IMDB": "imdb", "AgNews": "ag_news", "Beer": "beer"}
    rows = []
    for method, numbers in recorded["methods"].items():
        line = [method]
        for column, ours in zip(recorded["columns"], numbers, strict=True):
            theirs = getattr(RATIONALES.get(method), names.get(column.split(",")[0], ""), None)
            known = f" ({theirs.mean:g})" if theirs and ours is not None else ""
            line.append("–" if ours is None else f"{ours:.3f}{known}")
        rows.append(line)
    return table(["", *recorded["columns"]], rows)


def words_of_table_3(recorded: dict[str, Any]) -> str:
    rows = [[name, *(_cell(n, ".3f") for n in row)] for name, row in recorded["rows"].items()]
    return table(["", *recorded["columns"]], rows)


def write_tables(folder: Path) -> None:
    """All tables, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {}
    for path in sorted((ROOT / "benchmarks").glob("*.json")):
        texts[f"performance-{path.stem}"] = benchmark(path.stem, _read(path))
    results = ROOT / "docs" / "results"
    rationale = _read(results / "rationale-laptop.json")
    texts["results-table1"] = table_1()
    texts["results-mil"] = table_2(_read(results / "mil-laptop.json"))
    texts["results-mil-reference"] = table_2_reference(_read(results / "mil-reference-code.json"))
    texts["results-rationale"] = table_3(rationale["scores"])
    texts["results-rationale-words"] = words_of_table_3(rationale["rationales"])
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
