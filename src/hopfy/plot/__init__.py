"""Pictures of networks and maps; every function returns the axes it has drawn on.

Needs matplotlib (``pip install 'hopfy[plot]'``), which is imported when the first picture is drawn.
Colors are those of Okabe and Ito, which color-blind readers can tell apart. Nothing is shown and
no setting of matplotlib is changed: add to the axes, save ``axes.figure``, or call ``plt.show()``.
"""

from hopfy.plot._attention import attention
from hopfy.plot._bag import bag
from hopfy.plot._grid import recall_grid
from hopfy.plot._paths import regularization_path
from hopfy.plot._plane import basins, energy_landscape, trajectory
from hopfy.plot._space import Plane, plane_grid, plane_of
from hopfy.plot._weights import weights

__all__ = [
    "Plane",
    "attention",
    "bag",
    "basins",
    "energy_landscape",
    "plane_grid",
    "plane_of",
    "recall_grid",
    "regularization_path",
    "trajectory",
    "weights",
]
