"""Loads what the tests of processes need, once, in the process that all of them are forked from.

Compiled kernels are cached on disk, but loading them takes seconds in each process.
"""

from __future__ import annotations

import torch

from hopfy.distributed import ShardedMemory
from judges import sharded, sharded_memory

torch.set_num_threads(1)
sharded.answers_are_those_of_one_process(0, 1, "single", torch.float64)
sharded.bits_are_those_of_one_index(0, 1, torch.float32)
sharded.gradients_are_those_of_one_process(0, 1, "even", "replicated")
for _name in ("sparsemax, auto", "1.5-entmax, warm"):
    sharded_memory.tells_the_same_as_one_memory(0, 1, _name, "uneven", torch.float64)
_memory = ShardedMemory(beta=1.0)
_memory.add(torch.eye(4))
_memory.recall(torch.eye(4))
