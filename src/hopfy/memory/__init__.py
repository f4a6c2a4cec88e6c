"""The store: add patterns, recall them from damaged cues, save and load."""

from hopfy.memory._associative import AssociativeMemory
from hopfy.memory._recall import Recall
from hopfy.memory._recall_order import Fatigue, Inhibition, RecallOrder, UseUp

__all__ = ["AssociativeMemory", "Fatigue", "Inhibition", "Recall", "RecallOrder", "UseUp"]
