"""Exact retrieval over many memories: streamed, pruned, never the whole score matrix."""

from hopfy.search._index import ExactIndex, Top, Update
from hopfy.search._weights import SparseWeights

__all__ = ["ExactIndex", "SparseWeights", "Top", "Update"]
