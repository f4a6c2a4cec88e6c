"""The words that a prediction was made from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

from hopfy.app._model_files import facts, rationale_model
from hopfy.app._rationales_picture import draw_rationale
from hopfy.app._view import Choice, Shown, Slider, TextBox, View
from hopfy.estimators import NoKnownWordsWarning, Rationale, RationaleClassifier, tokenize

__all__ = ["RationaleSettings", "RationalesView", "explain"]

LONGEST_TEXT, MOST_WORDS = 2000, 300
_EXAMPLES = {
    "your own": "",
    "mixed": (
        "The first hour drags and the plot makes no sense, but the acting is wonderful and the "
        "ending is genuinely moving."
    ),
    "warm": "A funny, touching and beautifully filmed story that stays with you.",
    "cold": "A dull, lifeless mess with wooden dialogue and not a single good joke.",
    "negated": "It is not a bad film, and it is never boring.",
}


@dataclass(frozen=True)
class RationaleSettings:
    """A text, and how much neighbors attract each other."""

    text: str = _EXAMPLES["mixed"]
    transition: float = 0.0
    example: str = "mixed"


@lru_cache(maxsize=16)
def _model(transition: float) -> RationaleClassifier:
    return rationale_model().with_transition(transition)


def explain(text: str, transition: float) -> Rationale:
    """The prediction for a text and the words it was made from.

    >>> print(explain("A wonderful film .", 0.0).prediction)
    positive
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoKnownWordsWarning)
        return _model(transition).rationale([_cut(text)])[0]


def _cut(text: str) -> str:
    """The text up to the last word that is read."""
    places = tokenize(text).places
    return text if len(places) <= MOST_WORDS else text[: places[MOST_WORDS - 1][1]]


class RationalesView(View[RationaleSettings]):
    """Type a text and see the words that decided."""

    name = "rationales"
    short = "Rationales"
    controls_first = True
    title = "Rationales"
    lead = (
        "Type a film review. The classifier predicts from the highlighted words alone: three tenths "
        "of the text, chosen by sequential k-subsets. A larger transition score gives longer "
        "phrases."
    )
    fields = (
        Choice("example", "Example", tuple(_EXAMPLES)),
        TextBox("text", "Text", LONGEST_TEXT, rows=6),
        Slider("transition", "Transition score", 0.0, 1.5, step=0.05),
    )

    def defaults(self) -> RationaleSettings:
        return RationaleSettings()

    def checked(self, settings: RationaleSettings) -> tuple[RationaleSettings, list[str]]:
        count = len(tokenize(settings.text).tokens)
        if count <= MOST_WORDS:
            return settings, []
        return settings, [f"Text: only the first {MOST_WORDS} of {count} words are read."]

    def changed(
        self, settings: RationaleSettings, name: str, text: str
    ) -> tuple[RationaleSettings, list[str]]:
        new, notes = super().changed(settings, name, text)
        if name == "example" and _EXAMPLES.get(new.example):
            return RationaleSettings(_EXAMPLES[new.example], new.transition, new.example), notes
        if name == "text" and new.text != settings.text:
            return RationaleSettings(new.text, new.transition, "your own"), notes
        return new, notes

    def show(self, settings: RationaleSettings, width: float, *, fine: bool = True) -> Shown:  # noqa: ARG002
        found = explain(settings.text, settings.transition)
        picture = draw_rationale(found, width)
        numbers = {
            "prediction": str(found.prediction),
            "probability": found.probability,
            "selected": found.selected.tolist(),
            "weights": found.weights.tolist(),
        }
        return Shown(picture, _lines(found), code(settings), numbers)


def _lines(found: Rationale) -> list[str]:
    phrases = "; ".join(f"“{phrase}”" for phrase in found.phrases[:12])
    lines = [f"Used: {phrases}." if phrases else "No word of this text is known: a guess."]
    accuracy = facts()["rationales"]["accuracy"]
    lines.append(
        "The model: word vectors, a bidirectional LSTM and Hopfield pooling (Sec. 5.4 of the paper), "
        f"trained from scratch on 6,920 film reviews (SST); accuracy on the test set {accuracy:.1%}. "
        "Highlighted words are what the last layer saw, each through the LSTM, which has read its "
        "neighbors; they are not a proof of what the model understood."
    )
    return lines


def code(settings: RationaleSettings) -> str:
    """A program that explains the same text."""
    return f"""import hopfy.app

model = hopfy.app.rationale_model().with_transition({settings.transition!r})
found = model.rationale([{_cut(settings.text)!r}])[0]

result = {{
    "prediction": str(found.prediction),
    "probability": found.probability,
    "selected": found.selected.tolist(),
    "weights": found.weights.tolist(),
}}
print(found.prediction, found.phrases)
"""
