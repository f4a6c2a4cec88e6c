"""A small transformer for sentences whose attention works with every alpha.

It was trained on film reviews (see `hopfy.app.training`) with an alpha drawn anew for every batch, so
that one set of weights serves softmax (alpha = 1), sparsemax (alpha = 2) and everything between.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hopfy.functional import entmax

__all__ = ["CLASS_TOKEN", "Reading", "SentenceModel", "load_sentence_model", "save_sentence_model"]

CLASS_TOKEN = "⟨class⟩"
"""Stands before every sentence; the prediction is read from it."""
LONGEST = 64
_UNKNOWN = 1


@dataclass(frozen=True)
class Reading:
    """One sentence as the model reads it.

    Attributes:
        weights: (layers, heads, T, T), row i holds where token i looks; every row sums to 1.
        positive: the probability that the review is positive.
    """

    weights: Tensor
    positive: float


class SentenceModel(nn.Module):
    """Word vectors, two layers of attention with a given alpha, a class token.

    >>> import torch
    >>> model = SentenceModel(["good", "film"]).eval()
    >>> model.read(["Good", "film"], alpha=1.5).weights.shape
    torch.Size([2, 4, 3, 3])
    """

    def __init__(
        self, words: Sequence[str], size: int = 32, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words, 2)}
        self.embedding = nn.Embedding(len(self.words) + 2, size, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.positions = nn.Parameter(0.1 * torch.randn(LONGEST + 1, size))
        self.token = nn.Parameter(0.1 * torch.randn(size))
        self.layers = nn.ModuleList(_Layer(size, heads) for _ in range(layers))
        self.head = nn.Linear(size, 2)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """The numbers of the first words."""
        return [self._numbers.get(token.lower(), _UNKNOWN) for token in tokens[:LONGEST]]

    def forward(self, ids: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        """Logits (B, 2) and weights (B, layers, heads, T, T) of sentences (B, L), padded with 0."""
        states = torch.cat([self.token.expand(len(ids), 1, -1), self.embedding(ids)], 1)
        states = states + self.positions[: states.shape[1]]
        mask = torch.cat([ids.new_ones(len(ids), 1), ids], 1) > 0
        kept = []
        for layer in self.layers:
            states, weights = layer(states, mask, alpha)
            kept.append(weights)
        return self.head(states[:, 0]), torch.stack(kept, 1)

    def read(self, tokens: Sequence[str], alpha: float) -> Reading:
        """One sentence: where every token looks, and the prediction."""
        with torch.no_grad():
            logits, weights = self(torch.tensor([self.encode(tokens)], dtype=torch.int64), alpha)
        return Reading(weights[0], float(logits[0].softmax(-1)[1]))


class _Layer(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.inner_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.project, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.inner = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.dropout = nn.Dropout(0.2)

    def forward(self, states: Tensor, mask: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        batch, length, size = states.shape
        parts = self.project(self.norm(states)).reshape(batch, length, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.mT / queries.shape[-1] ** 0.5
        weights = entmax(scores, alpha, mask=mask[:, None, None, :].expand_as(scores))
        mixed = (weights @ values).transpose(1, 2).reshape(batch, length, size)
        states = states + self.dropout(self.out(mixed))
        return states + self.dropout(self.inner(self.inner_norm(states))), weights


def save_sentence_model(path: Path, model: SentenceModel, facts: dict[str, str]) -> None:
    """Write the parameters in half precision, the words as bytes, and what is known about them."""
    tensors = {name: each.half().contiguous() for name, each in model.state_dict().items()}
    words = json.dumps(list(model.words)).encode()
    tensors["words"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    save_file(tensors, path, metadata=facts)


def load_sentence_model(path: Path) -> tuple[SentenceModel, dict[str, str]]:
    """The model and what its training found out about it."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = dict(file.metadata())
    model = SentenceModel(json.loads(tensors.pop("words").numpy().tobytes()))
    model.load_state_dict({name: each.float() for name, each in tensors.items()})
    return model.eval(), facts
