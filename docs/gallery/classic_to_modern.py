"""
From Hopfield 1982 to sparse memories
=====================================

Six networks of the literature are one class with different regularizers. Here they store the same
random signs, and are asked for them with a fifth of the bits flipped.
"""

# %%
# `hopfy.models` builds each of them in one call.
import matplotlib.pyplot as plt
import torch

from hopfy import models
from hopfy.plot.style import MARKERS

torch.manual_seed(0)
size, counts = 48, [4, 8, 16, 32, 64, 128, 256, 512, 1024]
networks = {
    "classic (1982)": models.classic,
    "dense, n = 3 (2016)": models.dense,
    "exponential (2017)": lambda x: models.exponential(x, b=0.5),
    "modern (2020)": lambda x: models.modern(x, beta=0.5),
    "sparse (2023)": lambda x: models.sparse(x, beta=0.5),
    "1.5-entmax (2023)": lambda x: models.generalized_sparse(x, 1.5, beta=0.5),
}


def recalled(build, count: int) -> tuple[float, float]:
    """Shares of patterns whose signs come back, and that come back bit for bit."""
    patterns = torch.randn(count, size).sign()
    cues = patterns.clone()
    for cue in cues:
        cue[torch.randperm(size)[: size // 4]] *= -1
    state = build(patterns).retrieve(cues).state
    by_sign, exactly = state.sign() == patterns, state == patterns
    return tuple(float(found.all(1).double().mean()) for found in (by_sign, exactly))


shares = {name: [recalled(build, n) for n in counts] for name, build in networks.items()}

# %%
# Left: the sign of the answer is the stored pattern. The classic network breaks down beyond about
# 0.14 patterns per neuron, the dense one later; the other four find the nearest pattern. Right:
# the answer *is* the stored pattern. Softmax comes close, and is equal only where float32 rounds;
# sparse maps return it bit for bit.
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.6), sharey=True)
for number, ax in enumerate(axes):
    for (name, values), marker in zip(shares.items(), MARKERS, strict=False):
        line = [value[number] for value in values]
        ax.plot(counts, line, marker=marker, label=name, markersize=5, clip_on=False)
    ax.axvline(0.14 * size, color="#8a8a8a", linewidth=1, linestyle=":")
    ax.set_xscale("log", base=4)
    ax.set_xticks(counts[::2], [str(count) for count in counts[::2]])
    ax.set(xlabel=f"stored patterns of {size} signs", ylim=(0, 1.02))
axes[0].set(title="signs are right", ylabel="share recalled, 25% of bits flipped")
axes[1].set(title="equal to the stored pattern")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
plt.show()

# %%
# One of 12 stored pictures of 8 x 8 signs, recalled by each of them.
x, y = torch.meshgrid(torch.arange(8) - 3.5, torch.arange(8) - 3.5, indexing="ij")
patterns = torch.randn(12, 64).sign()
patterns[0] = (10 - x.square() - y.square()).sign().flatten()
cue = patterns[:1].clone()
cue[0, torch.randperm(64)[:16]] *= -1
figure, axes = plt.subplots(1, 8, figsize=(7.6, 1.5))
shown = {"stored": patterns[:1], "cue": cue}
shown |= {name: build(patterns).retrieve(cue).state for name, build in networks.items()}
for ax, (name, state) in zip(axes, shown.items(), strict=True):
    ax.imshow(state.reshape(8, 8), cmap="gray_r", vmin=-1, vmax=1)
    ax.set_title(name.replace(" (", "\n("), fontsize=7.5, loc="center")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
plt.show()
