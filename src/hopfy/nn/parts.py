"""The parts of layers, for layers that are built on others, such as `hopfy.distributed`."""

from __future__ import annotations

from hopfy.nn._association import Association, as_omega
from hopfy.nn._heads import blank, head_mask, merge, split

__all__ = ["Association", "as_omega", "blank", "head_mask", "merge", "split"]
