"""Memories that are larger than one machine: exact retrieval over processes.

Built on `torch.distributed` (gloo, NCCL, `DeviceMesh`), started by ``torchrun``. Every process holds
a part of the memories and makes the same calls; answers, ids and certificates are those of one
process with all memories.
"""

from hopfy.distributed._errors import (
    DisagreementError,
    DistributedError,
    LostProcessError,
    RemoteError,
)
from hopfy.distributed._lookup import ShardedHopfieldLookup, sharded_parameters
from hopfy.distributed._memory import ShardedMemory
from hopfy.distributed._network import ShardedHopfieldNetwork
from hopfy.distributed._simulation import Simulation, simulate
from hopfy.distributed._transport import Traffic

__all__ = [
    "DisagreementError",
    "DistributedError",
    "LostProcessError",
    "RemoteError",
    "ShardedHopfieldLookup",
    "ShardedHopfieldNetwork",
    "ShardedMemory",
    "Simulation",
    "Traffic",
    "sharded_parameters",
    "simulate",
]
