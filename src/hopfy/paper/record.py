"""Keep what an experiment has found in a small file, for the documentation and for `claims`.

``python -m hopfy.paper.record OUT/table1 docs/results`` writes ``docs/results/table1.json`` from the
``results.json`` that ``hopfy reproduce`` has left: the results, and what they depend on. With
``--merge`` what the old file has and the run lacks stays, where the experiment knows how.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopfy._files.atomic import replacing
from hopfy.paper._registry import load

__all__ = ["compact", "record"]

_KEPT = ("experiment", "profile", "seed", "config", "data_checksum", "versions", "results")
_DIGITS = 6
_LONGEST_LINE = 100


def record(run: Path, folder: Path, *, merge: bool = False) -> Path:
    """Write the compact record of a run into ``folder``; its name is the experiment's.

    For the paper's own profile that is ``NAME.json``, for another one ``NAME-PROFILE.json``. To
    ``merge`` is to keep what an old record of that name has beyond the run.
    """
    whole = json.loads((run / "results.json").read_text("utf-8"))
    name, profile = whole["experiment"], whole["profile"]
    path = folder / (f"{name}.json" if profile == "paper" else f"{name}-{profile}.json")
    kept = {key: whole[key] for key in _KEPT}
    kept["results"] = load(name).recorded(whole["results"])
    if merge and path.is_file():
        old = json.loads(path.read_text("utf-8"))
        kept["results"] = load(name).merged(old["results"], kept["results"])
    with replacing(path) as file:
        file.write(compact(kept).encode())
    return path


def compact(value: Mapping[str, Any]) -> str:
    """JSON in which what fits on a line is on one, and numbers have six digits.

    >>> print(compact({"scores": [0.123456789, 1.0], "name": "softmax"}), end="")
    {"scores": [0.123457, 1.0], "name": "softmax"}
    """
    return _lines(_rounded(value), 0) + "\n"


def _lines(value: Any, depth: int) -> str:
    line = json.dumps(value)
    if len(line) + depth <= _LONGEST_LINE or not isinstance(value, dict | list) or not value:
        return line
    if isinstance(value, dict):
        opened, closed = "{", "}"
        parts = [f"{json.dumps(key)}: {_lines(each, depth + 1)}" for key, each in value.items()]
    else:
        opened, closed = "[", "]"
        parts = [_lines(each, depth + 1) for each in value]
    inner = ",\n".join(" " * (depth + 1) + part for part in parts)
    return f"{opened}\n{inner}\n{' ' * depth}{closed}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), Path(sys.argv[2]), merge="--merge" in sys.argv[3:]))
