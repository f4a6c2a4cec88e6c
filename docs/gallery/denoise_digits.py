"""
Denoising digits, with certificates
===================================

A memory of 1,797 handwritten digits gets damaged cues. Each answer is a stored digit bit for bit,
or a mixture; a certificate says which, and is a proof.
"""

# %%
# Each image is one pattern of 64 coordinates. `beta="auto"` is chosen from the two most similar
# digits.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import hopfy

digits, labels = load_digits(return_X_y=True)
memory = hopfy.AssociativeMemory("sparsemax").fit(digits, labels)
print(memory.explain())

# %%
# Four kinds of damage to the same ten digits. For the lost half, ``mask`` says which pixels the
# cue contains; the others may be anything.
rng = np.random.default_rng(1)
some = [int(np.flatnonzero(labels == digit)[7]) for digit in range(10)]
clean = digits[some]
upper = np.arange(64) < 32
cues = {
    "noise": clean + rng.normal(0, 5, clean.shape),
    "dots": np.where(rng.random(clean.shape) < 0.25, 16.0 * (rng.random(clean.shape) < 0.5), clean),
    "lower half lost": np.where(upper, clean, 0.0),
    "two at once": 0.6 * clean + 0.4 * clean[::-1],
}
answers = {
    name: memory.recall(cue, mask=upper if "lost" in name else None) for name, cue in cues.items()
}
for name, answer in answers.items():
    right = int((np.asarray(answer.ids) == some).sum())
    print(f"{name:16s} {right} of 10 right, {int(answer.certified.sum())} certified")

# %%
# Cues above, answers below. A green frame marks a certified answer that is the digit we damaged;
# an orange one a certified answer that is another digit: the cue was nearer to that one.
figure, axes = plt.subplots(8, 10, figsize=(7.2, 5.9))
figure.set_layout_engine("constrained", h_pad=0.03, w_pad=0.03, hspace=0, wspace=0)
for row, (name, cue) in enumerate(cues.items()):
    for column in range(10):
        for offset, image in ((0, cue[column]), (1, answers[name].patterns[column])):
            ax = axes[2 * row + offset, column]
            ax.imshow(np.asarray(image).reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(bool(offset))
            if offset:
                right = answers[name].ids[column] == some[column]
                certified = bool(answers[name].certified[column])
                color = "#009E73" if right else "#D55E00" if certified else "#8a8a8a"
                ax.spines[:].set(color=color, linewidth=2)
        if column == 0:
            axes[2 * row, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
            axes[2 * row + 1, 0].set_ylabel(
                "recalled", rotation=0, ha="right", va="center", fontsize=9
            )
plt.show()
