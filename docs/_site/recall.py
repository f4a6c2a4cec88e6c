"""The recall experiments from their records: a figure, its caption and what it shows."""

from __future__ import annotations

from pathlib import Path

from hopfy import paper
from hopfy.paper.claims import Recorded

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ("capacity", "robustness", "free-recall", "sequential-recall")


def write_recall(folder: Path) -> None:
    """``recall-NAME.md`` and its figures, light and dark, for every experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in EXPERIMENTS:
        experiment, results = paper.load(name), recorded(name)
        (figure,) = experiment.draw(results, folder)
        text = "\n".join(_shown(figure.name, figure.caption, side) for side in ("light", "dark"))
        page = f"{experiment.explain(results)}\n\n{text}\n"
        (folder / f"recall-{name}.md").write_text(page, encoding="utf-8")


def recorded(name: str) -> dict:
    """The results at the paper's size, or those of the laptop profile."""
    records = Recorded(ROOT / "docs" / "results")
    return records.read(name) or records.read(f"{name}-laptop")


def _shown(name: str, caption: str, side: str) -> str:
    suffix = "-dark" if side == "dark" else ""
    lines = [f":::{{figure}} generated/{name}{suffix}.png", f":figclass: only-{side}"]
    return "\n".join([*lines, f":alt: {caption.split(';')[0]}", caption, ":::"])
