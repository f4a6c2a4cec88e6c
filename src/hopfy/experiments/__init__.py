"""The paper's experiments: each one runs, resumes, and sets its numbers beside the published ones.

>>> from hopfy import experiments
>>> experiments.load("table1").title
'Table 1: metastable states on MNIST'
"""

from hopfy.experiments._base import Config, Experiment, Figure, Grid, Progress, Quiet, Row, Store
from hopfy.experiments._registry import load, names
from hopfy.experiments._runner import Run, reproduce

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
