"""The paper's experiments: each one runs, resumes, and sets its numbers beside the published ones.

>>> from hopfy import paper
>>> paper.load("table1").title
'Table 1: metastable states on MNIST'
"""

from hopfy.paper._base import Config, Experiment, Figure, Grid, Progress, Quiet, Row, Store
from hopfy.paper._registry import load, names
from hopfy.paper._runner import Run, reproduce

__all__ = [
    "Config",
    "Experiment",
    "Figure",
    "Grid",
    "Progress",
    "Quiet",
    "Row",
    "Run",
    "Store",
    "load",
    "names",
    "reproduce",
]
