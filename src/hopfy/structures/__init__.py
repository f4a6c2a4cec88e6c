"""Sets of binary structures, each known by its best-scoring member (a MAP oracle)."""

from hopfy.structures._ksubsets import KSubsets

__all__ = ["KSubsets"]
