"""
A structure of your own
=======================

Whatever has a best member is a structure: write the function that finds it, and SparseMAP, losses,
networks and layers follow. Here, segments: attention to one run of consecutive positions.
"""

# %%
# The oracle gets a batch of scores and returns, for each row, the best structure as zeros and
# ones. For the best interval that is one running sum (Kadane's algorithm).
import matplotlib.pyplot as plt
import torch

import hopfy
from hopfy import functional as F


def best_segment(scores: torch.Tensor) -> torch.Tensor:
    best, begin, total, answer = -float("inf"), 0, 0.0, (0, 1)
    for i, score in enumerate(scores.tolist()):
        if total <= 0:
            begin, total = i, 0.0
        total += score
        if total > best:
            best, answer = total, (begin, i + 1)
    bits = torch.zeros(len(scores))
    bits[slice(*answer)] = 1
    return bits


segments = hopfy.structures.Oracle(best_segment)

# %%
# The scores of 40 positions have two bumps. Sparsemax and softmax pick positions one by one; the
# structure picks a run, and mixes two runs where they are nearly as good.
torch.manual_seed(1)
position = torch.arange(40.0)
bumps = 1.3 * torch.exp(-(((position - 11) / 3) ** 2)) + 1.25 * torch.exp(
    -(((position - 28) / 4) ** 2)
)
scores = bumps - 0.55 + 0.25 * torch.randn(40)
maps = {
    "softmax": F.softmax(scores),
    "sparsemax": F.sparsemax(scores),
    "segments": F.sparsemap(scores, segments),
}
figure, axes = plt.subplots(4, 1, figsize=(7.2, 4.6), sharex=True)
axes[0].bar(position, scores, color="#8a8a8a")
axes[0].set_ylabel("scores", fontsize=8)
for number, (ax, (name, weights)) in enumerate(zip(axes[1:], maps.items(), strict=True)):
    ax.bar(position, weights, color=f"C{number}")
    ax.set_ylabel(name, fontsize=8)
    zeros = position[weights == 0]
    ax.plot(zeros, torch.zeros(len(zeros)), "|", color="#cccccc", markersize=4)
axes[-1].set_xlabel("position")
plt.show()

# %%
# The solution also says which structures it mixes, and how much of each.
solution = F.sparsemap_solution(scores, segments)
for vertex, weight in zip(solution.vertices, solution.vertex_weights, strict=True):
    if weight > 0:
        chosen = vertex.nonzero().flatten()
        print(f"{float(weight):.3f} of positions {int(chosen[0])} to {int(chosen[-1])}")

# %%
# It is a map like any other: as the attention of a network over a sequence of memories, and as a
# loss that trains scores until the right segment leads by the margin.
omega = hopfy.SparseMAP(segments)
target = torch.zeros(40)
target[24:33] = 1
learned = scores.clone().requires_grad_()
optimizer = torch.optim.SGD([learned], lr=0.5)
losses = []
for _ in range(40):
    optimizer.zero_grad()
    loss = omega.loss(learned, target)
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6), width_ratios=(1, 2))
left.plot(losses)
left.set(xlabel="step", ylabel="Fenchel-Young loss")
right.bar(position, omega(learned.detach()), color="C2")
right.plot(position, target, drawstyle="steps-mid", color="#1a1a1a", lw=1, label="target")
right.set(xlabel="position", title="weights after training")
right.legend(fontsize=8, loc="upper left")
plt.show()
print(f"final loss: {losses[-1]:g}")
