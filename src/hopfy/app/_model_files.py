"""Where the explorer's weights are, and what was measured when they were made."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopfy.app._sentence_model import SentenceModel, load_sentence_model

if TYPE_CHECKING:
    from hopfy.estimators import RationaleClassifier

__all__ = [
    "FOLDER",
    "RATIONALE_FILE",
    "SENTENCE_FILE",
    "facts",
    "rationale_model",
    "sentence_model",
    "write_facts",
]

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


@lru_cache
def sentence_model() -> SentenceModel:
    """The small transformer of the view "attention": film reviews, any alpha from 1 to 2.2.

    >>> import hopfy.app
    >>> reading = hopfy.app.sentence_model().read(["a", "wonderful", "film"], alpha=1.5)
    >>> reading.weights.shape, reading.positive > 0.5
    (torch.Size([2, 4, 4, 4]), True)
    """
    return load_sentence_model(FOLDER / SENTENCE_FILE)[0]


@lru_cache
def rationale_model() -> RationaleClassifier:
    """The classifier of the view "rationales": film reviews, and the words it used.

    >>> import hopfy.app
    >>> hopfy.app.rationale_model().predict(["a wonderful film"]).tolist()
    ['positive']
    """
    from hopfy.estimators import RationaleClassifier

    return RationaleClassifier.load(FOLDER / RATIONALE_FILE)
