"""Sets of binary structures, each known by its best-scoring member (a MAP oracle)."""

from hopfy.structures._base import Rows, Structure
from hopfy.structures._chain import Chain
from hopfy.structures._configurations import Configurations
from hopfy.structures._factor_graph import (
    AtMostOne,
    Budget,
    Dense,
    Factor,
    FactorGraph,
    Or,
    Pair,
    Sequence,
    Xor,
    values,
)
from hopfy.structures._grid import Grid
from hopfy.structures._ksubsets import AtMostK, KSubsets
from hopfy.structures._matching import Matching
from hopfy.structures._oracle import Oracle
from hopfy.structures._sequential import SequentialKSubsets
from hopfy.structures._tree import Tree

__all__ = [
    "AtMostK",
    "AtMostOne",
    "Budget",
    "Chain",
    "Configurations",
    "Dense",
    "Factor",
    "FactorGraph",
    "Grid",
    "KSubsets",
    "Matching",
    "Or",
    "Oracle",
    "Pair",
    "Rows",
    "Sequence",
    "SequentialKSubsets",
    "Structure",
    "Tree",
    "Xor",
    "values",
]
