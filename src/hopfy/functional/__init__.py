"""Maps from scores to weights: tensors in, tensors out.

Every map takes ``scores`` of any shape and works along ``dim``; ``mask`` is True where an entry may
be selected. A masked entry, a score of ``-inf`` and an entry that is not there are the same thing; a
row with nothing to select gives zeros. NaN or ``+inf`` affect their own row only.
"""

from hopfy._renamed import renamed_members
from hopfy.functional._at_most_k import at_most_k
from hopfy.functional._attention import attention
from hopfy.functional._capped_sparsemax import capped_sparsemax
from hopfy.functional._chain import chain_marginals
from hopfy.functional._entmax import entmax, sparsemax
from hopfy.functional._entropic_ksubsets import entropic_ksubsets
from hopfy.functional._fusedmax import fusedmax
from hopfy.functional._ksubsets import ksubsets
from hopfy.functional._normmax import normmax
from hopfy.functional._sequential import sequential_ksubsets
from hopfy.functional._softmax import softmax
from hopfy.functional._solution import SparseMAPSolution, SparseMAPStatus
from hopfy.functional._sparsemap import sequential_marginals, sparsemap, sparsemap_solution
from hopfy.functional._varlen_attention import varlen_attention

__all__ = [
    "SparseMAPSolution",
    "SparseMAPStatus",
    "at_most_k",
    "attention",
    "capped_sparsemax",
    "chain_marginals",
    "entmax",
    "entropic_ksubsets",
    "fusedmax",
    "ksubsets",
    "normmax",
    "sequential_ksubsets",
    "sequential_marginals",
    "softmax",
    "sparsemap",
    "sparsemap_solution",
    "sparsemax",
    "varlen_attention",
]

__getattr__ = renamed_members(__name__, Status="SparseMAPStatus")
