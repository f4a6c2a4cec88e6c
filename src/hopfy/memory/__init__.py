"""The store a person uses: add patterns, recall them from damaged cues, save and load."""

from hopfy.memory._associative import AssociativeMemory
from hopfy.memory._recall import Recall

__all__ = ["AssociativeMemory", "Recall"]
