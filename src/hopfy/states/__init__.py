"""Regularizers of the state: one Psi says where states live and how an update makes them."""

from hopfy.states._base import State
from hopfy.states._names import state_from
from hopfy.states._spaces import Ball, Euclidean, LayerNorm, Sign, Tanh

__all__ = ["Ball", "Euclidean", "LayerNorm", "Sign", "State", "Tanh", "state_from"]
