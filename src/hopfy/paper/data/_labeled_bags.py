"""Labeled bags of instances."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LabeledBags"]


class LabeledBags(NamedTuple):
    """Labeled bags that share one table of instances.

    Attributes:
        instances: the instances of all bags, one after the other: (total, ...) features, or int64
            places in a table of instances.
        lengths: (bags,) int64, how many instances belong to each bag.
        labels: (bags,) int64, 0 or 1.

    >>> bags = LabeledBags(torch.arange(5), torch.tensor([2, 3]), torch.tensor([0, 1]))
    >>> [bag.tolist() for bag in bags.separate()]
    [[0, 1], [2, 3, 4]]
    """

    instances: Tensor
    lengths: Tensor
    labels: Tensor

    def separate(self) -> list[Tensor]:
        """One tensor for each bag."""
        return list(torch.split(self.instances, self.lengths.tolist()))
