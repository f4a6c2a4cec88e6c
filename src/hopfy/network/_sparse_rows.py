"""The library's one sparse matrix type, which lives in `hopfy.search`."""

from hopfy.search import SparseRows

__all__ = ["SparseRows"]
