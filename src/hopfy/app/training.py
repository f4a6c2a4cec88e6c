"""Make the files of weights that the explorer ships: ``python -m hopfy.app.training``.

Both models learn from the training sentences of the Stanford Sentiment Treebank (film reviews); the
validation sentences decide when to stop, and the test sentences are counted once, at the end. The
numbers are stored in the files and shown in the explorer. Nothing else is used: no other texts, no
pretrained vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from hopfy.app._model_files import RATIONALE_FILE, SENTENCE_FILE, write_facts
from hopfy.app._sentence_model import SentenceModel, save_sentence_model
from hopfy.estimators import RationaleClassifier, Selection, Training, Words
from hopfy.paper import data

__all__ = ["main", "train_rationales", "train_sentences"]

_ALPHAS = (1.0, 1.5, 2.0)
_LARGEST_ALPHA = 2.2
_MIN_COUNT = 3


def _sets() -> dict[str, data.Texts]:
    return {
        "train": data.sst("train"),
        "validation": data.sst("validation"),
        "test": data.sst("test"),
    }


def train_rationales(path: Path, seed: int = 0, epochs: int = 30) -> dict[str, float]:
    """Train a classifier of film reviews that shows its words; returns its accuracies."""
    sets = _sets()
    model = RationaleClassifier(
        share=0.3,
        vectors=32,
        hidden=32,
        words=Words(min_count=_MIN_COUNT),
        selection=Selection(temperature=0.3, transition=0.01),
        training=Training(lr=2e-3, max_epochs=epochs, patience=4, batch_size=32),
        random_state=seed,
    )
    names = {split: ["negative" if y == 0 else "positive" for y in one.labels.tolist()]
             for split, one in sets.items()}  # fmt: skip
    held = (sets["validation"].texts, names["validation"])
    model.fit(sets["train"].texts, names["train"], validation=held)
    model.save(path)
    return {"accuracy": float(model.score(sets["test"].texts, names["test"]))}


def train_sentences(path: Path, seed: int = 0, epochs: int = 20) -> dict[str, float]:
    """Train the transformer with an alpha drawn for every batch; returns accuracies by alpha."""
    torch.manual_seed(seed)
    sets = _sets()
    model = SentenceModel(_frequent_words(sets["train"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    best, kept = 0.0, model.state_dict()
    for epoch in range(epochs):
        model.train()
        for ids, labels in _batches(model, sets["train"], _shuffled(sets["train"], 32)):
            alpha = 1 + (_LARGEST_ALPHA - 1) * float(torch.rand(()))
            dropped = torch.where(torch.rand(ids.shape) < 0.3, (ids > 0).long(), ids)
            loss = nn.functional.cross_entropy(model(dropped, alpha)[0], labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found = _accuracy(model, sets["validation"], 1.5)
        print(f"sentences: epoch {epoch + 1} of {epochs}, validation accuracy {found:.3f}")
        if found > best:
            best, kept = found, {name: t.clone() for name, t in model.state_dict().items()}
    model.load_state_dict(kept)
    facts = {f"{alpha:g}": _accuracy(model, sets["test"], alpha) for alpha in _ALPHAS}
    save_sentence_model(path, model, {name: f"{value:.4f}" for name, value in facts.items()})
    return facts


def _frequent_words(texts: data.Texts) -> list[str]:
    counts: dict[str, int] = {}
    for text in texts.texts:
        for word in text:
            counts[word.lower()] = counts.get(word.lower(), 0) + 1
    return sorted(word for word, count in counts.items() if count >= _MIN_COUNT)


def _shuffled(texts: data.Texts, size: int) -> list[list[int]]:
    order: list[int] = torch.randperm(len(texts.texts)).tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


def _batches(
    model: SentenceModel, texts: data.Texts, numbers: list[list[int]]
) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in numbers:
        ids = [torch.tensor(model.encode(texts.texts[number])) for number in batch]
        yield pad_sequence(ids, batch_first=True), texts.labels[batch]


def _accuracy(model: SentenceModel, texts: data.Texts, alpha: float) -> float:
    model.eval()
    everyone = range(len(texts.texts))
    parts = [list(everyone[start : start + 128]) for start in everyone[::128]]
    with torch.no_grad():
        right = sum(
            int((model(ids, alpha)[0].argmax(-1) == labels).sum())
            for ids, labels in _batches(model, texts, parts)
        )
    return right / len(texts.texts)


def main(folder: Path) -> None:
    """Write both files and what was measured."""
    facts = {"rationales": train_rationales(folder / RATIONALE_FILE)}
    print(facts)
    facts["sentences"] = train_sentences(folder / SENTENCE_FILE)
    print(facts)
    write_facts(folder, facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "models")
