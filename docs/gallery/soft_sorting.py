"""
Matching as soft sorting
========================

A permutation is a perfect matching between items and places. SparseMAP over matchings is therefore
a differentiable sort, whose answer is an exact permutation once scores are far enough apart.
"""

# %%
# Item i fits place j by :math:`-|s_i - c_j|^2`, where :math:`c_j` are rising targets. Colder
# scores give sparser matrices.
import matplotlib.pyplot as plt
import torch

import hopfy
from hopfy import functional as F

torch.manual_seed(4)
values = torch.tensor([0.62, 0.08, 0.91, 0.35, 0.55, 0.20, 0.78, 0.47])
places = torch.linspace(0, 1, len(values))


def soft_permutation(values: torch.Tensor, beta: float) -> torch.Tensor:
    scores = -beta * (values[:, None] - places).square()
    return F.sparsemap(scores, hopfy.structures.Matching())


betas = [2.0, 10.0, 40.0, 400.0]
figure, axes = plt.subplots(1, 4, figsize=(7.6, 2.4))
for ax, beta in zip(axes, betas, strict=True):
    weights = soft_permutation(values, beta)
    ax.imshow(weights.where(weights > 0, torch.nan), cmap="cividis_r", vmin=0, vmax=1)
    ax.set_title(f"beta = {beta:g}: {int((weights > 0).sum())} entries", fontsize=8.5)
    ax.set(xticks=[], yticks=range(8), xlabel="place")
    ax.set_yticks(range(8), [f"{v:.2f}" for v in values], fontsize=7)
    ax.spines[:].set_color("#cccccc")
plt.show()
print(soft_permutation(values, 400.0).T @ values)

# %%
# Gradients flow through it. Here scores of items are learned from nothing but their sorted order:
# the rank of item i, :math:`\sum_j j\, y_{ij}`, is pulled to where it should be.
target = torch.tensor([5.0, 1.0, 7.0, 0.0, 3.0, 6.0, 2.0, 4.0])
scores = torch.full((8,), 0.5).add_(0.01 * torch.randn(8)).requires_grad_()
optimizer = torch.optim.Adam([scores], lr=0.02)
ranks, history = torch.arange(8.0), []
for _ in range(120):
    optimizer.zero_grad()
    rank = soft_permutation(scores, 12.0) @ ranks
    (rank - target).square().mean().backward()
    optimizer.step()
    history.append(rank.detach())
figure, ax = plt.subplots(figsize=(6.4, 3.2))
ax.plot(torch.stack(history))
ax.set(
    xlabel="step",
    ylabel="soft rank",
    title="soft ranks of eight items while their scores are learned",
)
plt.show()
print("learned order is right:", bool((scores.detach().argsort().argsort() == target).all()))
