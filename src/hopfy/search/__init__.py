"""Exact retrieval over many memories: streamed, pruned, never the whole score matrix."""

from hopfy.search._budget import peak_bytes
from hopfy.search._candidates import weights_on
from hopfy.search._index import ExactIndex, Metric, Top, Update
from hopfy.search._prepared import PreparedMap
from hopfy.search._softmax import SoftmaxRows
from hopfy.search._sparse_rows import SparseRows
from hopfy.search._two_pass import Agreement

__all__ = [
    "Agreement",
    "ExactIndex",
    "Metric",
    "PreparedMap",
    "SoftmaxRows",
    "SparseRows",
    "Top",
    "Update",
    "peak_bytes",
    "weights_on",
]
