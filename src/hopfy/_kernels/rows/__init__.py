"""What the CPU kernels of the row maps share.

* ``calls``: run a compiled kernel over the rows of tensors, on as many threads as pay.
* ``bits``: floats as integers, for use inside compiled code.
* ``scan``: the passes over a whole row: its maximum, its candidates, its support.
* ``powers``: powers in plain arithmetic that becomes vector instructions.
"""
