"""Row-wise solvers: each a compiled loop, and a plain torch reference beside it.

A module here takes tensors whose last dimension is the row and returns tensors; it does not
handle masks, dims or autograd. `hopfy.functional` adds those.
"""
