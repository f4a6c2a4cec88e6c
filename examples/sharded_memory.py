"""Exact retrieval from memories that are spread over processes.

    torchrun --nproc-per-node 2 examples/sharded_memory.py
    torchrun --nproc-per-node 4 examples/sharded_memory.py --patterns 200000 --queries 64

Every process makes its own part of the patterns; the queries are damaged copies of some of them.
Printed are the ids that were recalled, how many of the recalls are certified against the patterns of
*all* processes, the bytes that were sent and the time.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

from hopfy.distributed import ShardedHopfieldNetwork


def patterns_of(rank: int, count: int, size: int) -> torch.Tensor:
    """The patterns of one process: unit vectors, different on every process."""
    generator = torch.Generator().manual_seed(rank)
    return torch.nn.functional.normalize(torch.randn(count, size, generator=generator))


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact retrieval from sharded memories.")
    parser.add_argument("--patterns", type=int, default=20_000, help="on all processes together")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    options = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.set_num_threads(1)

    own = patterns_of(rank, options.patterns // world, options.size)
    network = ShardedHopfieldNetwork(own, "sparsemax", beta=4.0, timeout=120)
    chosen = torch.arange(options.queries) % world  # whose pattern each query is a copy of
    originals = torch.stack(
        [patterns_of(int(r), i + 1, options.size)[i] for i, r in enumerate(chosen)]
    )
    noise = torch.randn(originals.shape, generator=torch.Generator().manual_seed(999))
    queries = originals + 0.05 * noise

    network.update(queries)  # compile and plan
    before, begun = network.traffic, time.perf_counter()
    found = network.retrieve(queries)
    seconds, traffic = time.perf_counter() - begun, network.traffic - before
    expected = chosen * (options.patterns // world) + torch.arange(options.queries)
    if rank == 0:
        print(network)
        print(f"ids: {found.pattern.tolist()}")
        right = int((found.pattern == expected).sum())
        print(f"right: {right} of {options.queries}, certified: {int(found.certified.sum())}")
        print(
            f"sent by each process: {traffic.sent} bytes of answers and {traffic.headers} of headers "
            f"in {traffic.exchanges} exchanges"
        )
        print(f"time: {1e3 * seconds / options.queries:.2f} ms per query")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
