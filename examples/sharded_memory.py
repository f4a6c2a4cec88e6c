"""Exact recall from patterns that are spread over processes.

    torchrun --nproc-per-node 2 examples/sharded_memory.py
    torchrun --nproc-per-node 2 examples/sharded_memory.py --data mnist
    torchrun --nproc-per-node 4 examples/sharded_memory.py --patterns 200000 --queries 64

Every process loads its own part of the patterns (handwritten digits if they are there, generated
ones otherwise); the cues are damaged copies of some of them, and cues of which a third of the
coordinates is missing. Printed are the ids that were recalled, how many of the recalls are certified
against the patterns of *all* processes, the bytes that were sent and the times.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hopfy.distributed import ShardedHopfieldNetwork, ShardedMemory


def generated(first: int, stop: int, size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors and labels; row i is the same whoever makes it."""
    rows = [
        torch.randn(1024, size, generator=torch.Generator().manual_seed(block))
        for block in range(first // 1024, -(-stop // 1024))
    ]
    some = torch.cat(rows)[first % 1024 :][: stop - first] if rows else torch.empty(0, size)
    return torch.nn.functional.normalize(some), torch.arange(first, stop) % 10


def digits(first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of MNIST as unit vectors, and what they show."""
    images, labels = _mnist()
    pixels = images[first:stop].flatten(1).float()
    return torch.nn.functional.normalize(pixels), labels[first:stop]


@functools.cache
def _mnist() -> tuple[torch.Tensor, torch.Tensor]:
    from hopfy.paper.data import mnist

    return mnist("train")


def digits_are_here() -> bool:
    """Whether MNIST lies in $HOPFY_DATA or in the cache; nothing is downloaded."""
    from hopfy.paper.data import datasets

    return any(each.name == "mnist" and each.where() is not None for each in datasets())


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact recall from a sharded memory.")
    parser.add_argument("--data", choices=["auto", "mnist", "generated"], default="auto")
    parser.add_argument("--patterns", type=int, default=20_000, help="on all processes together")
    parser.add_argument("--queries", type=int, default=16)
    options = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.set_num_threads(1)

    use_digits = options.data == "mnist" or (options.data == "auto" and digits_are_here())
    load = digits if use_digits else generated
    count = min(options.patterns, 60_000) if use_digits else options.patterns
    own, labels = load(count * rank // world, count * (rank + 1) // world)
    chosen = torch.arange(options.queries) * (count // options.queries)  # from all processes
    originals = torch.cat([load(int(i), int(i) + 1)[0] for i in chosen])
    noise = torch.randn(originals.shape, generator=torch.Generator().manual_seed(999))
    cues = originals + 0.3 * noise / originals.shape[1] ** 0.5
    seen = torch.rand(cues.shape, generator=torch.Generator().manual_seed(7)) > 1 / 3

    def say(text: object) -> None:
        if rank == 0:
            print(text, flush=True)

    memory = ShardedMemory("sparsemax", beta=40.0, timeout=300)
    ids = memory.add(own, values=labels, layout="sharded")
    source = "images of MNIST" if use_digits else "generated unit vectors"
    say(f"{count} {source} with {own.shape[1]} coordinates on {world} processes")
    say(memory)
    memory.recall(cues)  # compiles and plans
    for name, mask in (("damaged cues", None), ("a third is missing", seen)):
        before, begun = memory.traffic, time.perf_counter()
        found = memory.recall(cues, mask)
        seconds, traffic = time.perf_counter() - begun, memory.traffic - before
        right = int((found.ids == chosen).sum())
        say(f"{name}: ids {found.ids.tolist()}")
        say(
            f"  right: {right} of {len(cues)}, certified: {int(found.certified.sum())}, labels: "
            f"{found.values.tolist()}"
        )
        say(
            f"  sent by each process: {traffic.sent} bytes of answers and {traffic.headers} of "
            f"headers in {traffic.exchanges} exchanges; {1e3 * seconds / len(cues):.2f} ms per cue"
        )
    near = memory.neighbors(cues[:1], 3)
    nearest = zip(near.ids[0].tolist(), near.scores[0].tolist(), strict=True)
    say("nearest to the first cue: " + ", ".join(f"id {i} at {far:.3f}" for i, far in nearest))

    network = ShardedHopfieldNetwork(own, "sparsemax", beta=40.0, timeout=300)
    retrieved = network.retrieve(cues)
    certified = int(retrieved.certified.sum())
    say(f"network: {certified} of {len(cues)} states certified, merged by {network.merge}")

    folder = Path(tempfile.gettempdir()) / f"hopfy-sharded-{os.environ.get('MASTER_PORT', 'one')}"
    memory.save(folder)
    again = ShardedMemory.load(folder)
    assert torch.equal(again.recall(cues).ids, memory.recall(cues).ids)
    say(f"saved, loaded again: {again.counts} patterns by rank; {len(ids)} were ours")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
