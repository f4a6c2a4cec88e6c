"""Where the explorer's weights are, and what was measured when they were made."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "RATIONALE_FILE", "SENTENCE_FILE", "facts", "write_facts"]

FOLDER = Path(__file__).parent / "models"
RATIONALE_FILE = "rationales.safetensors"
SENTENCE_FILE = "sentences.safetensors"
_FACTS = "facts.json"


def write_facts(folder: Path, found: dict[str, dict[str, float]]) -> None:
    """Write what was measured beside the weights."""
    (folder / _FACTS).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@lru_cache
def facts() -> dict[str, Any]:
    """What was measured: test accuracies of both models."""
    found: dict[str, Any] = json.loads((FOLDER / _FACTS).read_text("utf-8"))
    return found
