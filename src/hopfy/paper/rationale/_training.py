"""One method on one task: train it, test it once, look at what it selects."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hopfy.estimators._faithfulness import faithfulness
from hopfy.estimators._rationale_network import (
    RationaleModule,
    RationaleOptions,
    ShareOfWords,
    build_network,
    words_to_select,
)
from hopfy.estimators._text import EncodedTexts, SimilarLengths, Text, as_texts
from hopfy.estimators._training import Labelled, Training, reduce_on_plateau, seeded, train
from hopfy.paper.rationale._metrics import (
    Flags,
    human_overlap,
    macro_f1,
    mean_span,
    spans_of,
)
from hopfy.paper.rationale._task import Task
from hopfy.paper.rationale._texts import Corpus, Part, load

__all__ = ["Trained", "measure", "train_method"]

_BATCH = 32
_CLIP = 5.0
_PASS = 32_768
"""Words in a pass without gradients."""
_SHOWN = 3
"""Test texts whose highlights are kept."""
_EVERY_WORD = ("softmax",)
"""Methods that weigh every word: their rationale is as many words as the others may take."""
_NO_RATIONALE = ("BiLSTM",)


class Found(NamedTuple):
    """A rationale as `hopfy.estimators.faithfulness` reads it."""

    tokens: tuple[str, ...]
    spans: list[tuple[int, int]]


class Trained:
    """A trained network with what estimators do with texts."""

    def __init__(self, method: str, task: Task, corpus: Corpus, network: RationaleModule) -> None:
        self.method, self.task, self.network = method, task, network
        self.vocabulary = corpus.vocabulary

    def explain(self, encoded: EncodedTexts) -> tuple[Tensor, list[Tensor]]:
        """Logits (N, C) and the weights of every text."""
        self.network.eval()
        logits: list[Tensor] = [torch.empty(0)] * len(encoded)
        weights: list[Tensor] = list(logits)
        with torch.no_grad():
            for numbers in encoded.by_length(_PASS):
                batch = encoded.batch(numbers)
                found, weighed = self.network.explain(**batch)
                for row, number in enumerate(numbers):
                    logits[number] = found[row]
                    weights[number] = weighed[row, : int(batch["lengths"][row])]
        return torch.stack(logits), weights

    def selected(self, weights: Sequence[Tensor]) -> list[Flags]:
        """Which words of every text make its rationale: those whose weight is not zero."""
        if self.method in _NO_RATIONALE:
            return [np.ones(len(own), bool) for own in weights]
        if self.method not in _EVERY_WORD:
            return [(own > 0).numpy() for own in weights]
        flags = []
        for own in weights:
            k = int(words_to_select(torch.tensor(len(own)), self.task.share))
            flags.append(np.isin(np.arange(len(own)), own.topk(k).indices.numpy()))
        return flags

    def rationale(self, texts: Sequence[Any]) -> list[Found]:
        """What is selected in texts."""
        given = as_texts(texts)
        weights = self.explain(self._encode(given))[1]
        flags = self.selected(weights)
        return [Found(text.tokens, spans_of(own)) for text, own in zip(given, flags, strict=True)]

    def _encode(self, texts: Sequence[Text]) -> EncodedTexts:
        return EncodedTexts.of(texts, self.vocabulary)


class TrainedClassifier(Trained):
    """One that tells classes."""

    def predict_proba(self, texts: Sequence[Any]) -> Any:
        """Probabilities (N, C)."""
        return self.explain(self._encode(as_texts(texts)))[0].softmax(-1).numpy()


class TrainedRegressor(Trained):
    """One that tells a number in [0, 1]."""

    def predict(self, texts: Sequence[Any]) -> Any:
        """Numbers (N,)."""
        return self.explain(self._encode(as_texts(texts)))[0].sigmoid().squeeze(-1).numpy()


class _Loss(nn.Module):
    """Cross-entropy, or the squared error of a number in [0, 1], and what the network adds."""

    def __init__(self, network: RationaleModule, classes: int) -> None:
        super().__init__()
        self._penalty, self._classes = network.penalty, classes

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._classes:
            loss = nn.functional.cross_entropy(logits, labels)
        else:
            loss = nn.functional.mse_loss(logits.sigmoid().squeeze(-1), labels)
        return loss + self._penalty()


def train_method(method: str, task: Task, corpus: Corpus, seed: int) -> tuple[Trained, Any]:
    """A trained network, and what was recorded in every epoch."""
    options = RationaleOptions(
        share=task.share,
        transition=task.transition,
        temperature=task.temperature,
        hidden=task.hidden,
        word_dropout=task.word_dropout,
        dropout=task.dropout,
    )
    settings = Training(
        max_epochs=task.epochs,
        batch_size=_BATCH,
        lr=task.lr,
        weight_decay=task.weight_decay,
        clip=_CLIP,
        schedule=reduce_on_plateau(0.97, 5),
        patience=task.patience,
        optimizer=torch.optim.Adam,
    )
    with seeded(seed):
        network = build_network(method, corpus.embedding(), corpus.classes or 1, options)
        history = train(
            network,
            _Loss(network, corpus.classes),
            _labelled(corpus.training),
            settings,
            validation=_labelled(corpus.validation, by_length=True),
            score=_f1_of_logits if corpus.classes else None,
            order=SimilarLengths(corpus.training.encoded.lengths, _BATCH),
        )
    kind = TrainedClassifier if corpus.classes else TrainedRegressor
    return kind(method, task, corpus, network), history


def _labelled(part: Part, by_length: bool = False) -> Labelled:
    """Texts beside their labels, the short ones first if their order does not matter."""
    numbers = np.argsort(part.encoded.lengths, kind="stable").tolist() if by_length else None
    return Labelled(part.encoded, part.labels, numbers)


def _f1_of_logits(logits: Tensor, labels: Tensor) -> float:
    return macro_f1(logits.argmax(-1).tolist(), labels.tolist())


def measure(method: str, task: Task, seed: int) -> dict[str, Any]:
    """Everything that is reported about one method on one task, as JSON-able data.

    With ``task.read_with`` the network of k-subsets is measured with sequential k-subsets ``also``.
    """
    corpus = load(task, seed)
    begun = time.perf_counter()
    trained, history = train_method(method, task, corpus, seed)
    known = {
        "texts": [len(p.texts) for p in (corpus.training, corpus.validation, corpus.test)],
        "epochs": len(history),
        "training_seconds": time.perf_counter() - begun,
        "history": [_numbers(epoch) for epoch in history],
    }
    result = known | _tested(trained, corpus.test)
    if method == "k-subsets" and task.read_with is not None:
        reader = _with_transition(trained, task.read_with)
        result["also"] = {"sequential k-subsets": known | _tested(reader, corpus.test)}
    return result


def _with_transition(trained: Trained, transition: float) -> Trained:
    """The same network, whose pooling maps the same scores with sequential k-subsets."""
    reader = copy.copy(trained)
    reader.method, reader.network = "sequential k-subsets", copy.deepcopy(trained.network)
    association: Any = reader.network.pooling.pooling.hopfield.association  # type: ignore[union-attr]
    association.omega = ShareOfWords(trained.task.share, association.beta, transition)
    return reader


def _tested(trained: Trained, test: Part) -> dict[str, Any]:
    """How well it predicts, and which words it selects."""
    logits, weights = trained.explain(test.encoded)
    flags = trained.selected(weights)
    result: dict[str, Any] = {"score": _score(logits, test.labels)}
    if trained.method in _NO_RATIONALE:
        return result
    result |= _described(weights, flags)
    result |= faithfulness(trained, test.texts[: trained.task.judged])._asdict()
    if test.spans is not None:
        overlap = human_overlap(flags, test.spans)
        result["overlap"] = None if overlap is None else overlap._asdict()
        result["examples"] = _examples(test, flags)
    return result


def _score(logits: Tensor, labels: Tensor) -> float:
    """F1 over the classes, or the mean squared error."""
    if labels.is_floating_point():
        return float((logits.sigmoid().squeeze(-1) - labels).square().mean())
    return _f1_of_logits(logits, labels)


def _numbers(epoch: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in epoch.items()}


def _described(weights: Sequence[Tensor], flags: Sequence[Flags]) -> dict[str, float]:
    """How much is selected, in how long spans, and how much of it only in part."""
    shares = [float(own.mean()) for own in flags if len(own)]
    parts = [float(((own > 0) & (own < 1)).float().mean()) for own in weights if len(own)]
    return {
        "selected": float(np.mean(shares)),
        "fractional": float(np.mean(parts)),
        "span": mean_span(flags),
    }


def _examples(part: Part, flags: Sequence[Flags]) -> list[dict[str, Any]]:
    """The first test texts of middling length, to be drawn."""
    spans = part.spans or []
    order = [n for n in range(len(part.texts)) if 12 <= len(part.texts[n]) <= 500 and spans[n]]
    return [
        {
            "number": n,
            "tokens": list(part.texts[n].tokens),
            "human": [list(span) for span in spans[n]],
            "selected": [list(span) for span in spans_of(flags[n])],
        }
        for n in order[:_SHOWN]
    ]
