"""When retrieval is exact: the paper's propositions as functions.

========  =========================================================================================
Prop. 1   `energy_bound`
Prop. 2   `lead`, `separations`, `is_stationary`, `one_step`, `certified_radius`
Prop. 3   `separated_capacity`, `random_capacity`
Prop. 4   `has_structured_margin`
Prop. 5   `association_separation`, `structured_radius`, `association_radius`, and the diameters
proofs    `proves_fixed_point`, `proves_with_index`, `exact_margin`: Props. 2 and 5, rounding included
========  =========================================================================================
"""

from hopfy.theory._bounds import energy_bound
from hopfy.theory._capacity import Capacity, random_capacity, separated_capacity
from hopfy.theory._index_proof import proves_with_index
from hopfy.theory._proof import exact_margin, proves_fixed_point
from hopfy.theory._rounding import rounding_bound
from hopfy.theory._separation import (
    OneStep,
    Separations,
    certified_radius,
    is_stationary,
    lead,
    one_step,
    separations,
)
from hopfy.theory._structured import (
    association_radius,
    association_separation,
    has_structured_margin,
    ksubsets_diameter,
    sequential_ksubsets_diameter,
    structured_radius,
)

__all__ = [
    "Capacity",
    "OneStep",
    "Separations",
    "association_radius",
    "association_separation",
    "certified_radius",
    "energy_bound",
    "exact_margin",
    "has_structured_margin",
    "is_stationary",
    "ksubsets_diameter",
    "lead",
    "one_step",
    "proves_fixed_point",
    "proves_with_index",
    "random_capacity",
    "rounding_bound",
    "separated_capacity",
    "separations",
    "sequential_ksubsets_diameter",
    "structured_radius",
]
