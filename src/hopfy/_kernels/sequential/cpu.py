"""Sequential k-subsets, compiled: the kernels that Python calls, each compiled when first used.

A row is relaxed first (O(N)); where the relaxed solution is certified as a mixture of subsets it is
the answer, and otherwise active sets find it. Rows with large numbers are reduced to what these
leave undecided before both.
"""

from __future__ import annotations

from hopfy._kernels.sequential.cpu_active_rows import active_rows
from hopfy._kernels.sequential.cpu_gradients import jvp_rows, pairs_rows, vjp_rows
from hopfy._kernels.sequential.cpu_presolve import ROUGH, reduce_rows
from hopfy._kernels.sequential.cpu_relaxation import relax_rows
from hopfy._kernels.sequential.cpu_rows import CERTAIN, LARGE, Answers

__all__ = [
    "CERTAIN",
    "LARGE",
    "ROUGH",
    "Answers",
    "active_rows",
    "jvp_rows",
    "pairs_rows",
    "reduce_rows",
    "relax_rows",
    "vjp_rows",
]
