"""Hopfield networks: energies, dynamics and what a retrieval found."""

from hopfy.network._arguments import checked_omega, checked_state, checked_values
from hopfy.network._dynamics import Outcome, Rules, iterate
from hopfy.network._fixed_points import kept_in_place
from hopfy.network._implicit import attach_implicit_gradient
from hopfy.network._network import HopfieldNetwork
from hopfy.network._retrieval import Kind, Retrieval, Status
from hopfy.network._step import Step, widened

__all__ = [
    "HopfieldNetwork",
    "Kind",
    "Outcome",
    "Retrieval",
    "Rules",
    "Status",
    "Step",
    "attach_implicit_gradient",
    "checked_omega",
    "checked_state",
    "checked_values",
    "iterate",
    "kept_in_place",
    "widened",
]
