"""
Energy landscapes and basins
============================

The same five patterns, three maps. Softmax has its minima between patterns; sparse maps have them
exactly at patterns, and more of the plane leads there.
"""

# %%
# Patterns on the circle, at the same inverse temperature. Lines are retrievals from the same ten
# cues; the energy never rises along them.
import matplotlib.pyplot as plt
import torch

import hopfy
import hopfy.plot

torch.manual_seed(3)
angles = torch.tensor([0.2, 1.1, 2.6, 3.6, 5.3])
patterns = torch.stack([angles.cos(), angles.sin()], dim=1)
cues = 1.6 * torch.rand(10, 2) - 0.8
maps = ["softmax", "1.5-entmax", "5-normmax"]
networks = {name: hopfy.HopfieldNetwork(patterns, name, beta=6.0) for name in maps}

figure, axes = plt.subplots(2, 3, figsize=(7.6, 5.2))
for column, (name, network) in enumerate(networks.items()):
    hopfy.plot.energy_landscape(network, colorbar=False, ax=axes[0, column])
    hopfy.plot.trajectory(network, cues, ax=axes[0, column])
    hopfy.plot.basins(network, points=120, ax=axes[1, column])
    axes[0, column].set_title(name)
    axes[1, column].set_title("basins")
for ax in axes.flat:
    ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
plt.show()

# %%
# The white part of the lower row ends at mixtures. At :math:`\beta = 6` softmax recalls no pattern
# exactly (it never does at any temperature), the sparse maps recall those whose separation is at
# least :math:`m / \beta`.
for name, network in networks.items():
    found = network.retrieve(cues)
    exact = int((found.pattern >= 0).sum())
    print(
        f"{name:12s} {exact:2d} of 10 cues end at a pattern, {int(found.certified.sum())} certified"
    )

# %%
# A larger radius is certified for patterns that are farther from the others
# (:func:`hopfy.theory.certified_radius`): every cue inside the circle is recalled in one step.
radii = hopfy.theory.certified_radius(patterns, hopfy.Norm(5.0), beta=8.0)
network = hopfy.HopfieldNetwork(patterns, "5-normmax", beta=8.0)
figure, ax = plt.subplots(figsize=(4.6, 4.2))
hopfy.plot.basins(network, points=160, ax=ax)
for pattern, radius in zip(patterns, radii.clamp(min=0), strict=True):
    ax.add_patch(plt.Circle(pattern.tolist(), float(radius), fill=False, color="#1a1a1a", lw=1.4))
ax.set(title="certified balls inside the basins, beta = 8", xlabel="", ylabel="", aspect="equal")
plt.show()
