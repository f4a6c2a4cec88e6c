"""
Several patterns at once
========================

A cue may stand for more than one pattern. A network over 2-subsets answers with the sum of two
stored patterns, exactly, and says which two; on the simplex it can only mix.
"""

# %%
# One digit of each class, and cues that are two of them laid over each other, with noise.
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import hopfy

torch.manual_seed(0)
images = torch.tensor(load_digits().data[:10], dtype=torch.float32)  # 0, 1, ..., 9
patterns = torch.nn.functional.normalize(images - images.mean(0), dim=1)
pairs = torch.tensor([[0, 1], [2, 6], [3, 4], [5, 7], [1, 8], [4, 9]])
cues = patterns[pairs].sum(1) + 0.1 * torch.randn(6, 64)

# %%
# Three networks on the same cues.
networks = {
    "softmax": hopfy.HopfieldNetwork(patterns, "softmax", beta=12.0),
    "sparsemax": hopfy.HopfieldNetwork(patterns, "sparsemax", beta=12.0),
    "2-subsets": hopfy.HopfieldNetwork(patterns, "2-subsets", beta=12.0),
}
for name, network in networks.items():
    found = network.retrieve(cues)
    top = found.weights.topk(2).indices.sort(1).values
    both = (top == pairs.sort(1).values).all(1) & (found.size == 2)
    print(f"{name:10s} {int(both.sum())} of 6 pairs found, {int(found.certified.sum())} certified")

# %%
# Rows: the two digits, the cue, and what each network answers. Only the structured one keeps both.
rows = {"first": patterns[pairs[:, 0]], "second": patterns[pairs[:, 1]], "cue": cues}
rows |= {name: network.retrieve(cues).state for name, network in networks.items()}
figure, axes = plt.subplots(len(rows), 6, figsize=(5.6, 5.4))
figure.set_layout_engine("constrained", h_pad=0.03, w_pad=0.03)
for line, (name, states) in zip(axes, rows.items(), strict=True):
    for ax, state in zip(line, states, strict=True):
        ax.imshow(state.reshape(8, 8), cmap="gray_r")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
