"""
What temperature does to weights
================================

The same five scores, from cold to hot, through six maps. Sparse maps reach exact zeros and ones at
a finite temperature; their margin says which.
"""

# %%
# Scores are those of the paper's figure 2. At temperature T the weights are those of the scores
# divided by T.
import matplotlib.pyplot as plt
import torch

import hopfy
import hopfy.plot

scores = torch.tensor([1.0716, -1.1221, -0.3288, 0.3368, 0.0425])
maps = ["softmax", "1.5-entmax", "sparsemax", "2-normmax", "5-normmax", "2-subsets"]
temperatures = torch.linspace(0.03, 3, 200)
figure, axes = plt.subplots(2, 3, figsize=(7.6, 4.4), sharex=True, sharey=True)
for ax, name in zip(axes.flat, maps, strict=True):
    hopfy.plot.regularization_path(name, scores, temperatures, legend=False, ax=ax)
    margin = hopfy.omega_from(name).margin
    ax.set_title(f"{name}, {'no margin' if margin == torch.inf else f'margin {margin:g}'}")
    ax.set(xlabel="", ylabel="")
for ax in axes[1]:
    ax.set_xlabel("temperature")
for ax in axes[:, 0]:
    ax.set_ylabel("weight")
plt.show()

# %%
# The best score leads the second by 0.7348. A map with margin m is one-hot exactly up to the
# temperature 0.7348 / m.
lead = float(scores.topk(2).values.diff().abs())
for name in maps[:5]:
    omega = hopfy.omega_from(name)
    limit = lead / omega.margin
    if limit > 0:
        below, above = omega(scores / (limit * 0.999)), omega(scores / (limit * 1.001))
        sizes = f"{int((below > 0).sum())} entry, then {int((above > 0).sum())}"
        print(f"{name:11s} one-hot up to {limit:.4f}: {sizes}")
    else:
        print(f"{name:11s} never one-hot: no margin")
