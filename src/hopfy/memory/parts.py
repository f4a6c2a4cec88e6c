"""The parts of a memory, for stores that are built on others, such as `hopfy.distributed`."""

from __future__ import annotations

from hopfy.memory._arrays import (
    ArrayLike,
    as_ids,
    as_mask,
    as_patterns,
    as_queries,
    as_values,
    in_kind_of,
)
from hopfy.memory._associative import AssociativeMemory, Entry, Neighbors
from hopfy.memory._associative import _check_cues as check_cues
from hopfy.memory._budget import RecallBudget
from hopfy.memory._dynamics import KINDS, Engine, Piece
from hopfy.memory._equal_lengths import lifted, radius_for, squared_lengths
from hopfy.memory._estimator import Estimator
from hopfy.memory._fill import fill, temperature_share
from hopfy.memory._guarantee import _ROOM as ROOM
from hopfy.memory._guarantee import Guarantee
from hopfy.memory._recall import Collector
from hopfy.memory._settings import Compare, Settings
from hopfy.memory._store import Contents, Store
from hopfy.memory._values import Codec, codec_for, described_values
from hopfy.memory._writer import _codes as codes_of

__all__ = [
    "KINDS",
    "ROOM",
    "ArrayLike",
    "Codec",
    "Collector",
    "Compare",
    "Contents",
    "Engine",
    "Entry",
    "Estimator",
    "Guarantee",
    "Neighbors",
    "Piece",
    "RecallBudget",
    "Settings",
    "as_ids",
    "as_mask",
    "as_patterns",
    "as_queries",
    "as_values",
    "check_cues",
    "codec_for",
    "codes_of",
    "described_values",
    "fill",
    "in_kind_of",
    "lifted",
    "memory_of",
    "radius_for",
    "squared_lengths",
    "temperature_share",
]


def memory_of(settings: Settings, contents: Contents, next_id: int) -> AssociativeMemory:
    """A memory with these settings and contents, which are not copied."""
    beta = "auto" if settings.beta is None else settings.beta
    memory = AssociativeMemory(settings.omega, beta, compare=settings.compare)
    memory._writer.store = Store(contents, next_id)
    return memory
