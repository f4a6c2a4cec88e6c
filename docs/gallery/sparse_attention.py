"""
Sparse attention in a small transformer
=======================================

A transformer with one encoder layer learns to look something up: a sequence of key-value pairs,
then a key; the answer is that key's value. With 1.5-entmax in place of softmax, attention to
everything else is exactly zero.
"""

# %%
# The task: 8 pairs, one question. Keys are letters, values are digits.
import matplotlib.pyplot as plt
import torch
from torch import nn

import hopfy
import hopfy.plot

LETTERS, PAIRS = "abcdefghijklmnop", 8


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.rand(size, len(LETTERS)).argsort(1)[:, :PAIRS]
    values = torch.randint(10, (size, PAIRS))
    asked = torch.randint(PAIRS, (size, 1))
    pairs = keys + len(LETTERS) * values  # one token for each pair
    question = len(LETTERS) * 10 + keys.gather(1, asked)
    return torch.cat([pairs, question], 1), values.gather(1, asked)[:, 0]


class Lookup(nn.Module):
    """Tokens of keys and values, one layer of attention, the answer read at the last position."""

    def __init__(self, omega: str, size: int = 48) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(len(LETTERS), size), nn.Embedding(11, size)
        self.attention = hopfy.nn.HopfieldAttention(size, 2, batch_first=True, omega=omega)
        self.read = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.key(tokens % len(LETTERS)) + self.value(tokens // len(LETTERS))
        found, weights = self.attention(x, x, x, average_attn_weights=False)
        return self.read((x + found)[:, -1]), weights


# %%
# Both models see the same 160 batches.
models, curves = {}, {}
for omega in ("softmax", "1.5-entmax"):
    torch.manual_seed(0)
    model = Lookup(omega)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    curve = []
    for _ in range(160):
        tokens, answers = batch(128)
        optimizer.zero_grad()
        scores, _ = model(tokens)
        nn.functional.cross_entropy(scores, answers).backward()
        optimizer.step()
        curve.append(float((scores.argmax(1) == answers).double().mean()))
    models[omega], curves[omega] = model.eval(), curve

torch.manual_seed(1)
tokens, answers = batch(2000)
for omega, model in models.items():
    with torch.no_grad():
        scores, weights = model(tokens)
    last = weights[:, :, -1]
    print(
        f"{omega:11s} accuracy {float((scores.argmax(1) == answers).double().mean()):.3f}, "
        f"exact zeros {float((last == 0).double().mean()):.0%} of the last row"
    )

# %%
# Attention of the last position, the question, for one sequence. Blank is exactly zero.
names = [f"{LETTERS[t % 16]}{t // 16}" for t in tokens[0, :-1].tolist()]
names.append(f"{LETTERS[int(tokens[0, -1]) % 16]}?")
figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.7), width_ratios=(1.25, 1, 1))
for name, curve in curves.items():
    smooth = torch.tensor(curve).unfold(0, 8, 8).mean(1)
    axes[0].plot(8 * torch.arange(len(smooth)), smooth, label=name)
axes[0].set(xlabel="step", title="training accuracy", ylim=(0, 1.02))
axes[0].legend(fontsize=8, loc="lower right")
for ax, (omega, model) in zip(axes[1:], models.items(), strict=True):
    with torch.no_grad():
        weights = model(tokens[:1])[1][0, :, -1]
    for head, color in ((0, "C0"), (1, "C1")):
        ax.barh([i + 0.4 * head - 0.2 for i in range(9)], weights[head], 0.4, color=color)
    ax.set_yticks(range(9), names, fontsize=8, family="monospace")
    ax.invert_yaxis()
    ax.set(title=f"{omega}, two heads", xlim=(0, 1), xlabel="attention of the question")
plt.show()
