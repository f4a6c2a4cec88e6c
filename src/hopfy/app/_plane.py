"""Memories in the plane: energy, basins, a trajectory, its certificate and radius."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopfy import theory
from hopfy.app._plane_picture import draw_plane
from hopfy.app._view import Button, Choice, Event, Numbers, Shown, Slider, View
from hopfy.network import HopfieldNetwork
from hopfy.omega import omega_from

__all__ = ["REACH", "Field", "PlaneSettings", "PlaneView", "Walk", "field_of", "walk"]

REACH = 1.6
"""The plane is shown from -REACH to REACH."""
_OMEGAS = ("softmax", "1.5-entmax", "sparsemax", "2-normmax", "5-normmax", "2-subsets")
_STATES = ("euclidean", "ball", "tanh", "sign", "layer-norm")
_MOST_PATTERNS, _MOST_STEPS = 12, 60
_NEW_PLACES = ((0.0, 1.2), (1.2, -0.1), (-1.2, 0.1), (0.0, -1.2), (0.6, 0.6), (-0.6, -0.6))


@dataclass(frozen=True)
class PlaneSettings:
    """Patterns (x, y, x, y, ...), a cue, and the network."""

    patterns: tuple[float, ...] = (0.9, 0.5, -0.6, 0.9, -0.9, -0.5, 0.5, -1.0)
    cue: tuple[float, ...] = (0.15, 0.35)
    omega: str = "sparsemax"
    state: str = "euclidean"
    beta: float = 3.0
    step: int = _MOST_STEPS
    background: str = "energy"


@dataclass(frozen=True)
class Walk:
    """The path of the cue.

    Attributes:
        states: one point for each step, the cue first.
        energies: of these points; infinite outside the domain of the states.
        summary: what was recalled, in one line.
        pattern: which pattern was recalled exactly, -1 for none.
        certified: whether that is proven to be a fixed point.
        weights: of the patterns at the end.
        radii: how far a cue may be from each pattern and still recall it in one step; not positive
            where nothing is proven.
    """

    states: tuple[tuple[float, float], ...]
    energies: tuple[float, ...]
    summary: str
    pattern: int
    certified: bool
    weights: tuple[float, ...]
    radii: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Field:
    """Energies (P, P) over the plane, and the weights (B, B, N) at which each point ends."""

    energies: NDArray[np.float64]
    ends: NDArray[np.float64]
    exact: NDArray[np.bool_]


def network_of(settings: PlaneSettings) -> HopfieldNetwork:
    """The network of the settings."""
    memories = torch.tensor(settings.patterns, dtype=torch.float64).reshape(-1, 2)
    return HopfieldNetwork(memories, settings.omega, settings.beta, state=settings.state)


def walk(settings: PlaneSettings) -> Walk:
    """Where the cue goes, and what is proven about it.

    >>> found = walk(PlaneSettings(patterns=(1.0, 0.0, 0.0, 1.0), cue=(0.9, 0.2), beta=4.0))
    >>> found.summary
    'pattern 0 exactly, after 1 step, certified'
    """
    network = network_of(settings)
    cue = torch.tensor(settings.cue, dtype=torch.float64)
    found = network.retrieve(cue, max_steps=_MOST_STEPS)
    states = [cue]
    for _ in range(int(found.steps)):
        states.append(network.update(states[-1]))
    path = torch.stack(states)
    return Walk(
        tuple((float(x), float(y)) for x, y in path),
        tuple(network.energy(path).tolist()),
        found.describe(0),
        int(found.pattern),
        bool(found.certified),
        tuple(found.weights.tolist()),
        tuple(_radii(network)),
    )


def _radii(network: HopfieldNetwork) -> list[float]:
    """Certified radii of single patterns; the theory is about Euclidean states and the simplex."""
    if not network.state.is_identity or network.omega.largest_mass != 1:
        return []
    found = theory.certified_radius(network.memories, network.omega, float(network.beta))
    return list(found.tolist())


def _grid(points: int) -> Tensor:
    line = torch.linspace(-REACH, REACH, points, dtype=torch.float64)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)


@lru_cache(maxsize=8)
def field_of(settings: PlaneSettings, points: int, steps: int) -> Field:
    """Energies on a grid, or where its points end after at most so many steps."""
    network = network_of(settings)
    if settings.background == "energy":
        nothing = np.zeros((0, 0, 0))
        energies = network.energy(_grid(points)).numpy()
        return Field(energies, nothing, np.zeros((0, 0), dtype=bool))
    found = network.retrieve(_grid(points), max_steps=steps)
    return Field(np.zeros((0, 0)), found.weights.numpy(), (found.pattern >= 0).numpy())


class PlaneView(View[PlaneSettings]):
    """Drag patterns and the cue."""

    name = "plane"
    short = "Plane"
    title = "Memories in the plane"
    lead = (
        "Drag the stars (stored patterns) and the ring (the cue). The path shows the updates of "
        "the cue, down the energy. A dashed circle is the certified radius: every cue inside it "
        "recalls its pattern exactly, in one step."
    )
    fields = (
        Choice("omega", "Map (omega)", _OMEGAS),
        Choice("state", "State space", _STATES),
        Slider("beta", "Inverse temperature β", 0.2, 60.0, log=True),
        Choice("background", "Background", ("energy", "basins")),
        Slider("step", "Steps shown", 0, _MOST_STEPS, whole=True, step=1),
        Numbers("patterns", "Patterns x, y, x, y …", -REACH, REACH, 4, 2 * _MOST_PATTERNS),
        Numbers("cue", "Cue x, y", -REACH, REACH, 2, 2),
    )
    buttons = (
        Button("first", "Back to the cue"),
        Button("next", "Next step"),
        Button("add", "Add a pattern"),
        Button("remove", "Remove a pattern"),
    )

    def defaults(self) -> PlaneSettings:
        return PlaneSettings()

    def checked(self, settings: PlaneSettings) -> tuple[PlaneSettings, list[str]]:
        if len(settings.patterns) % 2 == 0:
            return settings, []
        note = "Patterns: expected an even number of coordinates; the last one is left out."
        return replace(settings, patterns=settings.patterns[:-1]), [note]

    def moved(self, settings: PlaneSettings, event: Event) -> PlaneSettings:
        if event.x is None or event.y is None:
            return settings
        # Adding 0.0 turns -0.0 into 0.0.
        place = [round(min(max(each, -REACH), REACH), 3) + 0.0 for each in (event.x, event.y)]
        if event.handle == "cue":
            return replace(settings, cue=tuple(place))
        kind, _, number = event.handle.partition(":")
        if kind != "pattern" or not number.isdigit() or 2 * int(number) >= len(settings.patterns):
            return settings
        patterns = list(settings.patterns)
        patterns[2 * int(number) : 2 * int(number) + 2] = place
        return replace(settings, patterns=tuple(patterns))

    def act(self, settings: PlaneSettings, name: str) -> PlaneSettings:
        count = len(settings.patterns) // 2
        if name == "first":
            return replace(settings, step=0)
        if name == "next":
            last = len(walk(settings).states) - 1
            return replace(settings, step=min(settings.step, last) + 1)
        if name == "add" and count < _MOST_PATTERNS:
            new = _NEW_PLACES[count % len(_NEW_PLACES)]
            return replace(settings, patterns=(*settings.patterns, *new))
        if name == "remove" and count > 2:
            return replace(settings, patterns=settings.patterns[:-2])
        return settings

    def show(self, settings: PlaneSettings, width: float, *, fine: bool = True) -> Shown:
        path = walk(settings)
        ground = replace(settings, cue=(), step=0)
        energy = settings.background == "energy"
        points, steps = (72 if fine else 48, 0) if energy else (84 if fine else 36, 12)
        field = field_of(ground, points, steps)
        picture = draw_plane(settings, path, field, width)
        numbers = {
            "states": [list(each) for each in path.states],
            "energies": list(path.energies),
            "pattern": path.pattern,
            "certified": path.certified,
            "radii": list(path.radii),
        }
        return Shown(picture, _lines(settings, path), code(settings), numbers)


def _lines(settings: PlaneSettings, path: Walk) -> list[str]:
    lines = [("yes:" if path.certified else "") + f"Recalled: {path.summary}."]
    if settings.state != "euclidean":
        lines.append("Radii are proven for Euclidean states only: none are drawn.")
    elif not path.radii:
        lines.append("Radii of single patterns need a map on the simplex: none are drawn.")
    elif all(radius <= 0 for radius in path.radii):
        margin = omega_from(settings.omega).margin
        reason = "has no margin" if margin == float("inf") else "needs a larger β here"
        lines.append(f"No pattern has a certified radius: {settings.omega} {reason}.")
    else:
        shown = [f"{n}: {r:.2f}" for n, r in enumerate(path.radii) if r > 0]
        lines.append("Certified radii: " + ", ".join(shown) + ".")
    return lines


def code(settings: PlaneSettings) -> str:
    """A program that walks the same path."""
    pairs = [list(settings.patterns[i : i + 2]) for i in range(0, len(settings.patterns), 2)]
    return f"""import torch
import hopfy
from hopfy import theory

patterns = torch.tensor({pairs}, dtype=torch.float64)
cue = torch.tensor({list(settings.cue)}, dtype=torch.float64)
network = hopfy.HopfieldNetwork(
    patterns, {settings.omega!r}, {settings.beta!r}, state={settings.state!r}
)

found = network.retrieve(cue, max_steps={_MOST_STEPS})
states = [cue]
for _ in range(int(found.steps)):
    states.append(network.update(states[-1]))
states = torch.stack(states)

radii = []  # the theory is about Euclidean states and maps on the simplex
if network.state.is_identity and network.omega.largest_mass == 1:
    radii = theory.certified_radius(patterns, network.omega, network.beta).tolist()

result = {{
    "states": states.tolist(),
    "energies": network.energy(states).tolist(),
    "pattern": int(found.pattern),
    "certified": bool(found.certified),
    "radii": radii,
}}
print(found.describe(0))

# With matplotlib, the picture:
# import hopfy.plot
# ax = hopfy.plot.energy_landscape(network)
# hopfy.plot.trajectory(network, cue[None], ax=ax)
"""
