"""Layers whose weights come from any regularizer: sparse, structured or dense.

`Hopfield` associates queries with memories; `HopfieldPooling` learns the queries, `HopfieldLookup`
the memories, and `HopfieldAttention` has the signature of `torch.nn.MultiheadAttention`.
"""

from hopfy._renamed import renamed_members
from hopfy.nn._attention import HopfieldAttention
from hopfy.nn._convert import from_hflayers
from hopfy.nn._heads import Sizes
from hopfy.nn._hopfield import Hopfield, HopfieldLookup, HopfieldPooling
from hopfy.nn._learnable import LearnableAlpha, LearnableBeta
from hopfy.nn._maps import Entmax, KSubsetsMap, Normmax, Softmax, Sparsemax
from hopfy.nn._sparse_cache import CacheStats, SparseCache
from hopfy.nn._subset_sizes import ShareOfLength
from hopfy.nn._transformer import HopfieldDecoderLayer, HopfieldEncoderLayer

__all__ = [
    "CacheStats",
    "Entmax",
    "Hopfield",
    "HopfieldAttention",
    "HopfieldDecoderLayer",
    "HopfieldEncoderLayer",
    "HopfieldLookup",
    "HopfieldPooling",
    "KSubsetsMap",
    "LearnableAlpha",
    "LearnableBeta",
    "Normmax",
    "ShareOfLength",
    "Sizes",
    "Softmax",
    "SparseCache",
    "Sparsemax",
    "from_hflayers",
]

__getattr__ = renamed_members(__name__, KSubsets="KSubsetsMap")
