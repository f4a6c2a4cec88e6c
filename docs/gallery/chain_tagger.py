"""
A tagger with the SparseMAP loss
================================

Labels of a sequence depend on their neighbors. A chain structure scores whole label sequences; its
Fenchel-Young loss trains emissions and transitions together, and prediction mixes only a few
sequences.
"""

# %%
# Made sequences: a hidden weather of three states that tends to stay, seen through noisy
# measurements.
import matplotlib.pyplot as plt
import torch
from torch import nn

import hopfy
from hopfy import functional as F
from hopfy.structures import Chain

torch.manual_seed(0)
STATES, LENGTH = 3, 30
stay = torch.full((STATES, STATES), 0.06) + 0.82 * torch.eye(STATES)
center = torch.tensor([[0.0, 1.2], [1.1, -0.7], [-1.1, -0.7]])


def sequences(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    tags = torch.randint(STATES, (count, 1))
    for _ in range(LENGTH - 1):
        tags = torch.cat([tags, torch.multinomial(stay[tags[:, -1]], 1)], 1)
    return center[tags] + 1.1 * torch.randn(count, LENGTH, 2), tags


# %%
# Two taggers with the same emissions: one decides position by position, one scores chains with
# learned transitions.
x, tags = sequences(64)
new_x, new_tags = sequences(200)
taggers = {}
for name in ("each position", "chain"):
    torch.manual_seed(0)
    emit = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, STATES))
    transition = nn.Parameter(torch.zeros(STATES, STATES))
    optimizer = torch.optim.Adam([*emit.parameters(), transition], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        omega = hopfy.SparseMAP(Chain(transition)) if name == "chain" else hopfy.Tsallis(2.0)
        hopfy.FenchelYoungLoss(omega)(emit(x), tags).backward()
        optimizer.step()
    taggers[name] = (emit, transition.detach())


def marginals(name: str, x: torch.Tensor) -> torch.Tensor:
    emit, transition = taggers[name]
    with torch.no_grad():
        scores = emit(x)
        return F.sparsemap(scores, Chain(transition)) if name == "chain" else F.sparsemax(scores)


for name in taggers:
    right = (marginals(name, new_x).argmax(-1) == new_tags).double().mean()
    print(f"{name:14s} {float(right):.1%} of new tags right")

# %%
# One new sequence. The chain's marginals are mostly exactly zero or one: positions where they are
# not are those where few label sequences compete.
figure, axes = plt.subplots(3, 1, figsize=(7.6, 3.9), sharex=True)
truth = torch.nn.functional.one_hot(new_tags[0], STATES).double()
rows = {"true tags": truth} | {name: marginals(name, new_x[:1])[0] for name in taggers}
for ax, (name, weights) in zip(axes, rows.items(), strict=True):
    bottom = torch.zeros(LENGTH, dtype=torch.double)
    for state in range(STATES):
        ax.bar(range(LENGTH), weights[:, state], 0.92, bottom=bottom, color=f"C{(0, 1, 2)[state]}")
        bottom += weights[:, state].double()
    ax.set_ylabel(name, rotation=0, ha="right", va="center")
    ax.set(yticks=[], ylim=(0, 1), xlim=(-0.6, LENGTH - 0.4))
    ax.spines["left"].set_visible(False)
axes[-1].set_xlabel("position")
plt.show()

# %%
# The learned transitions prefer to stay, as the weather does.
print(taggers["chain"][1].round(decimals=2))
