"""
A memory larger than RAM
========================

Patterns can stay in a file: they are written a few rows at a time and mapped when they are read. A
recall touches only what its bounds cannot rule out; the answers are those of a memory in RAM,
certificates included.
"""

# %%
# The patterns come from a generator in blocks, so they are never in memory together. (Here 120,000
# of 64 numbers, so that the page is built quickly; nothing changes for a thousand times as many
# but the time.)
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import hopfy

folder = tempfile.TemporaryDirectory()
count, size, block = 120_000, 64, 8_192
raw = np.lib.format.open_memmap(Path(folder.name) / "raw.npy", "w+", np.float32, (count, size))
rng = np.random.default_rng(0)
centers = rng.normal(size=(300, size)).astype(np.float32)
for start in range(0, count, block):
    rows = raw[start : start + block]
    rows[:] = centers[rng.integers(300, size=len(rows))] + 0.6 * rng.normal(size=rows.shape)
raw.flush()

# %%
# ``create`` writes the file of a memory, ``load(..., mmap=True)`` maps it. With this many patterns
# beta is a number of our own: ``"auto"`` would compare all pairs.
path = Path(folder.name) / "memory.hopfy"
hopfy.AssociativeMemory.create(path, raw, beta=0.5)
memory = hopfy.AssociativeMemory.load(path, mmap=True)
print(memory)
print(f"file: {os.path.getsize(path) / 2**20:.0f} MB")

# %%
# Damaged copies of 64 patterns from all over the file.
asked = rng.choice(count, 64, replace=False)
cues = np.asarray(raw[asked]) + 0.1 * rng.normal(size=(64, size)).astype(np.float32)
answer = memory.recall(cues)
print(answer)
print("all right:", bool((np.asarray(answer.ids) == asked).all()))

# %%
# The same recall from memory in RAM gives the same bits.
in_ram = hopfy.AssociativeMemory.load(path)
again = in_ram.recall(cues)
same = np.array_equal(answer.patterns, again.patterns) and np.array_equal(answer.ids, again.ids)
print("same answers:", same)

# %%
# How many stored patterns are near a cue, and how near: the recalled one is far ahead of the
# second.
near = memory.neighbors(cues, k=50)
figure, ax = plt.subplots(figsize=(6.8, 3.2))
ax.plot(range(1, 51), np.asarray(near.scores).T, color="C0", alpha=0.15, linewidth=1)
ax.plot(range(1, 51), np.median(near.scores, 0), color="C1", label="median of 64 cues")
ax.set(
    xscale="log", xlabel="rank among 120,000 patterns", ylabel="distance to the cue", ylim=(0, None)
)
ax.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
ax.legend(fontsize=8, loc="lower right")
plt.show()
memory.close()
