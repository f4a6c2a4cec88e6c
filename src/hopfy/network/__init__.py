"""Hopfield networks: energies, dynamics and what a retrieval found."""

from hopfy.network._network import HopfieldNetwork
from hopfy.network._retrieval import Kind, Retrieval, Status

__all__ = ["HopfieldNetwork", "Kind", "Retrieval", "Status"]
