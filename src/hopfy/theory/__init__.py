"""When retrieval is exact: the paper's propositions as functions."""

from hopfy.theory._proof import exact_margin, proves_fixed_point

__all__ = ["exact_margin", "proves_fixed_point"]
