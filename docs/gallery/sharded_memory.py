"""
A memory spread over processes
==============================

Sparse maps give weight to a few patterns only, so shards have little to tell each other. The
simulation runs an update over many shards in one process and counts what would be sent; the answer
is that of one network.
"""

# %%
# 32,768 patterns, 32 queries with a lot of noise, so that several patterns compete for each.
import matplotlib.pyplot as plt
import torch

import hopfy
from hopfy.distributed import simulate

torch.manual_seed(0)
memories = torch.nn.functional.normalize(torch.randn(32_768, 32), dim=1)
queries = memories[:32] + 0.15 * torch.randn(32, 32)
omega, beta = hopfy.Tsallis(2.0), 4.0
whole = hopfy.HopfieldNetwork(memories, omega, beta)

# %%
# Candidates within the map's reach of the best score are exchanged, and nothing else.
shards = [1, 2, 4, 8, 16, 32, 64, 128]
results = [simulate(memories, queries, omega, beta, count) for count in shards]
for found in results[::3]:
    sent = found.tree_bytes / len(queries)
    print(
        f"{found.shards:3d} shards: {found.candidates} candidates, {sent:.0f} bytes per query in a tree"
    )
expected = whole.weights(queries)
same = [torch.allclose(found.weights.dense().float(), expected, atol=1e-6) for found in results]
print("same weights as one network:", all(same))

# %%
# What is sent depends on the candidates, not on the number of patterns: far below the scores
# themselves, which a dense map would have to exchange.
figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0))
left.plot(shards, [found.all_gather_bytes / 32 for found in results], "o-", label="all-gather")
left.plot(shards, [found.tree_bytes / 32 for found in results], "s-", label="binary tree")
left.axhline(8 * len(memories), color="#8a8a8a", linestyle=":")
left.text(128, 9.5 * len(memories), "all scores", color="#8a8a8a", fontsize=8, ha="right")
left.set(xscale="log", yscale="log", xlabel="shards", ylabel="bytes per query", ylim=(None, 2e6))
left.legend(fontsize=8, loc="center right")
sizes = (expected > 0).sum(1)
right.hist(sizes, bins=torch.arange(0.5, int(sizes.max()) + 1.5).tolist(), color="C2", rwidth=0.85)
right.set(xlabel="patterns with weight", ylabel="queries", title="of 32,768")
left.set_xticks(shards, [str(count) for count in shards])
left.minorticks_off()
plt.show()
