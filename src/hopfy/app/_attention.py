"""Sparse and dense attention of one small model, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from hopfy.app._attention_picture import draw_attention
from hopfy.app._model_files import facts, sentence_model
from hopfy.app._sentence_model import CLASS_TOKEN
from hopfy.app._view import Choice, Event, Number, Shown, Slider, TextBox, View
from hopfy.estimators import tokenize

__all__ = ["Attended", "AttentionSettings", "AttentionView", "attend"]

LONGEST_TEXT, MOST_WORDS = 400, 22
_LAYERS, _HEADS = ("1", "2"), ("1", "2", "3", "4", "mean")


@dataclass(frozen=True)
class AttentionSettings:
    """A sentence, alpha, and which part of the model to look at."""

    text: str = "The plot is thin, but the acting is wonderful."
    alpha: float = 1.7
    layer: str = "1"
    head: str = "1"
    word: int = 0


@dataclass(frozen=True)
class Attended:
    """The sentence as the model reads it with one alpha.

    Attributes:
        tokens: the words that were read, the class token first.
        weights: (T, T) of the chosen head.
        positive: the probability that the review is positive.
        zeros: the share of weights, over all layers and heads, that are exactly zero.
    """

    tokens: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    positive: float
    zeros: float


@lru_cache(maxsize=64)
def attend(text: str, alpha: float, layer: str, head: str) -> Attended:
    """Read a sentence with one alpha.

    >>> found = attend("A wonderful film .", 2.0, "1", "mean")
    >>> found.tokens
    ('⟨class⟩', 'A', 'wonderful', 'film', '.')
    """
    words = tokenize(text).tokens[:MOST_WORDS]
    reading = sentence_model().read(words, alpha)
    weights = _head(reading.weights[int(layer) - 1], head)
    return Attended(
        (CLASS_TOKEN, *words),
        tuple(tuple(row) for row in weights.tolist()),
        reading.positive,
        float((reading.weights == 0).double().mean()),
    )


def _head(weights: Tensor, head: str) -> Tensor:
    return weights.mean(0) if head == "mean" else weights[int(head) - 1]


class AttentionView(View[AttentionSettings]):
    """Type a sentence and move alpha."""

    name = "attention"
    short = "Attention"
    controls_first = True
    title = "Attention"
    lead = (
        "Type a sentence. A small transformer reads it twice with the same weights: with softmax "
        "and with α-entmax. Row by row, each word looks at the words of the columns; empty squares "
        "are exact zeros. Choose a row to read its numbers."
    )
    fields = (
        TextBox("text", "Sentence", LONGEST_TEXT, rows=3),
        Slider("alpha", "α (1 softmax, 2 sparsemax)", 1.0, 2.2, step=0.02),
        Choice("layer", "Layer", _LAYERS),
        Choice("head", "Head", _HEADS),
        Number("word", "Row", 0, MOST_WORDS, whole=True),
    )

    def defaults(self) -> AttentionSettings:
        return AttentionSettings()

    def checked(self, settings: AttentionSettings) -> tuple[AttentionSettings, list[str]]:
        count = len(tokenize(settings.text).tokens)
        notes = []
        if count > MOST_WORDS:
            notes = [f"Sentence: only the first {MOST_WORDS} of {count} words are read."]
        return replace(settings, word=min(settings.word, min(count, MOST_WORDS))), notes

    def moved(self, settings: AttentionSettings, event: Event) -> AttentionSettings:
        kind, _, place = event.handle.partition(":")
        if kind != "word" or not place.isdigit() or len(place) > 3:
            return settings
        return self.checked(replace(settings, word=int(place)))[0]

    def show(self, settings: AttentionSettings, width: float, *, fine: bool = True) -> Shown:  # noqa: ARG002
        both = [
            attend(settings.text, alpha, settings.layer, settings.head)
            for alpha in (1.0, settings.alpha)
        ]
        picture = draw_attention(both[0], both[1], settings.alpha, settings.word, width)
        numbers = {
            name: {"weights": [list(row) for row in one.weights], "positive": one.positive}
            for name, one in zip(("softmax", "entmax"), both, strict=True)
        }
        return Shown(picture, _lines(settings, both), code(settings), numbers)


def _lines(settings: AttentionSettings, both: list[Attended]) -> list[str]:
    lines = []
    for name, one in zip(("softmax", f"{settings.alpha:g}-entmax"), both, strict=True):
        row = one.weights[settings.word]
        order = sorted(range(len(row)), key=lambda place: -row[place])[:5]
        seen = ", ".join(f"“{one.tokens[n]}” {row[n]:.2f}" for n in order if row[n] > 0)
        lines.append(f"{name}: “{one.tokens[settings.word]}” looks at {seen}.")
        sign = "positive" if one.positive >= 0.5 else "negative"
        share = max(one.positive, 1 - one.positive)
        lines[-1] += f" Prediction: {sign} ({share:.0%}). Exact zeros: {one.zeros:.0%}."
    found = facts()["sentences"]
    lines.append(
        "The model: two layers, four heads, 32 features, trained from scratch on 6,920 film reviews "
        "(SST) with α drawn anew for every batch. It is small and often wrong: accuracy on the test "
        f"set {found['1']:.1%} with softmax, {found['1.5']:.1%} with α = 1.5, {found['2']:.1%} with "
        "sparsemax."
    )
    return lines


def code(settings: AttentionSettings) -> str:
    """A program that reads the same sentence."""
    chosen = "weights.mean(0)" if settings.head == "mean" else f"weights[{int(settings.head) - 1}]"
    return f"""import hopfy.app
from hopfy.estimators import tokenize

model = hopfy.app.sentence_model()
words = tokenize({settings.text!r}).tokens[:{MOST_WORDS}]

result = {{}}
for name, alpha in {{"softmax": 1.0, "entmax": {settings.alpha!r}}}.items():
    reading = model.read(words, alpha)
    weights = reading.weights[{int(settings.layer) - 1}]  # (heads, words, words)
    result[name] = {{"weights": ({chosen}).tolist(), "positive": reading.positive}}
    print(name, f"positive with probability {{reading.positive:.3f}},",
          f"{{float((reading.weights == 0).double().mean()):.0%}} of all weights are zero")
"""
