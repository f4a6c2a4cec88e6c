"""
Each head learns its own sparsity
=================================

:class:`hopfy.nn.LearnableAlpha` holds one alpha per head, between softmax (1) and sparsemax (2),
with exact gradients. Here a layer finds the alphas and the temperatures of another one from its
outputs alone.
"""

# %%
# The teacher has four heads: softmax, two kinds of entmax, sparsemax, each at its own temperature.
import copy

import matplotlib.pyplot as plt
import torch

import hopfy

torch.manual_seed(0)
alphas, betas = torch.tensor([1.05, 1.35, 1.65, 1.9]), torch.tensor([1.0, 1.6, 0.8, 1.2])
sizes = hopfy.nn.Sizes(16, head=8)
teacher = hopfy.nn.Hopfield(sizes, heads=4, omega=hopfy.Tsallis(alphas[:, None]), beta=betas)

# %%
# The student has the same projections, and starts at alpha = 1.5 and beta = 1 in every head.
student = hopfy.nn.Hopfield(
    sizes,
    heads=4,
    omega=hopfy.nn.LearnableAlpha(4, init=1.5),
    beta=hopfy.nn.LearnableBeta(4, init=1.0),
)
student.load_state_dict(copy.deepcopy(teacher.state_dict()), strict=False)
learned = [*student.association.omega.parameters(), *student.association.beta.parameters()]
optimizer = torch.optim.Adam(learned, lr=0.1)
paths = {"alpha": [], "beta": []}
for _ in range(400):
    queries, memories = 2 * torch.randn(32, 6, 16), 2 * torch.randn(32, 10, 16)
    optimizer.zero_grad()
    error = student(queries, memories) - teacher(queries, memories).detach()
    error.square().mean().backward()
    optimizer.step()
    paths["alpha"].append(student.association.omega.alpha.detach().clone())
    paths["beta"].append(student.association.beta().detach().clone())

# %%
# Lines are learned, dotted lines are the teacher's.
figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.1))
for ax, (name, truth) in zip(axes, {"alpha": alphas, "beta": betas}.items(), strict=True):
    lines = ax.plot(torch.stack(paths[name]))
    for head, line in enumerate(lines):
        ax.axhline(float(truth[head]), color=line.get_color(), linestyle=":", linewidth=1.2)
        line.set_label(f"head {head}")
    ax.set(xlabel="step", ylabel=name, xlim=(0, 400))
axes[0].legend(fontsize=8, loc="center right")
plt.show()
print("alpha:", [round(float(a), 2) for a in paths["alpha"][-1]])
print("beta: ", [round(float(b), 2) for b in paths["beta"][-1]])

# %%
# What each head selects from ten memories, for eight queries. Blank is exactly zero.
torch.manual_seed(1)
with torch.no_grad():
    weights = student(2 * torch.randn(8, 16), 2 * torch.randn(10, 16), need_weights=True)[1]
figure, axes = plt.subplots(1, 4, figsize=(7.4, 1.9), sharey=True)
for head, ax in enumerate(axes):
    shown = weights[head].where(weights[head] > 0, torch.nan)
    ax.imshow(shown, cmap="cividis_r", vmin=0, vmax=1)
    alpha = float(paths["alpha"][-1][head])
    ax.set_title(f"head {head}, alpha {alpha:.2f}", fontsize=8.5)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color="#cccccc")
axes[0].set_ylabel("queries")
plt.show()
