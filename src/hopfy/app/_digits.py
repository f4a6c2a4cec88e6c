"""Damaged digits, recalled by every network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hopfy import models
from hopfy.app._digits_picture import draw_digits
from hopfy.app._view import Button, Choice, Control, Event, Number, Shown, Slider, View
from hopfy.memory import AssociativeMemory
from hopfy.network import HopfieldNetwork, Retrieval

__all__ = ["STORED", "Cue", "DigitSettings", "DigitsView", "Recalled", "cue_of", "recalls"]

STORED = 100
"""How many of scikit-learn's digits are stored."""
DAMAGES = ("noise", "covered", "half missing", "two at once", "none")
_MAPS = ("softmax", "1.5-entmax", "sparsemax", "5-normmax", "2-subsets")
_LEVELS = "0123456789abcdefg"  # 17 shades
_STEPS = 60


@dataclass(frozen=True)
class DigitSettings:
    """Which digit, what was done to it, and the networks' inverse temperature."""

    digit: int = 3
    damage: str = "noise"
    amount: float = 0.5
    beta: float = 30.0
    seed: int = 0
    drawn: str = ""


@dataclass(frozen=True, eq=False)
class Cue:
    """What the networks see.

    Attributes:
        vector: (64,) the cue, centered.
        known: (64,) which pixels are known.
        pixels: (64,) as shown, 0 to 16.
        truth: the numbers of the digits that are in it.
    """

    vector: Tensor
    known: Tensor
    pixels: Tensor
    truth: tuple[int, ...]


@dataclass(frozen=True)
class Recalled:
    """What one network made of the cue.

    Attributes:
        name: of the network.
        pixels: 64 numbers from 0 (paper) to 16 (ink).
        ids: the stored digits that it recalled exactly; empty for a blend.
        nearest: the stored digit that is nearest to it.
        certified: whether it is proven to be a fixed point.
        steps: how many updates it took.
        summary: in one line.
    """

    name: str
    pixels: tuple[float, ...]
    ids: tuple[int, ...]
    nearest: int
    certified: bool
    steps: int
    summary: str


@dataclass(frozen=True, eq=False)
class Album:
    """The stored digits: pixels (N, 64), labels, their mean, lengths, and unit vectors around it."""

    pixels: Tensor
    labels: tuple[int, ...]
    center: Tensor
    lengths: Tensor
    patterns: Tensor
    signs: Tensor


@lru_cache
def album() -> Album:
    """The first digits of scikit-learn's collection."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = torch.as_tensor(found.data[:STORED], dtype=torch.float64)
    center = pixels.mean(0)
    around = pixels - center
    signs = torch.where(pixels >= 8, 1.0, -1.0).to(torch.float64)
    labels = tuple(int(each) for each in found.target[:STORED])
    lengths = around.norm(dim=-1)
    return Album(pixels, labels, center, lengths, normalize(around, dim=-1), signs)


def cue_of(settings: DigitSettings) -> Cue:
    """The damaged digit, or the drawing."""
    stored = album()
    known = torch.ones(64, dtype=torch.bool)
    if settings.drawn:
        pixels = torch.tensor([_LEVELS.index(one) for one in settings.drawn], dtype=torch.float64)
        return Cue(normalize(pixels - stored.center, dim=0), known, pixels, ())
    vector = stored.patterns[settings.digit]
    truth: tuple[int, ...] = (settings.digit,)
    if settings.damage == "noise":
        generator = torch.Generator().manual_seed(settings.seed)
        noise = torch.randn(64, generator=generator, dtype=torch.float64)
        vector = vector + 0.3 * settings.amount * noise
    elif settings.damage == "two at once":
        other = _other(settings)
        vector, truth = vector + stored.patterns[other], (settings.digit, other)
    elif settings.damage != "none":
        known = _seen(settings)
        vector = torch.where(known, vector, 0.0)
    length = stored.lengths[list(truth)].mean()
    pixels = (stored.center + length * vector).clamp(0, 16)
    return Cue(vector, known, pixels, truth)


def _other(settings: DigitSettings) -> int:
    """A second digit that shows another number."""
    labels = album().labels
    for step in range(1, STORED):
        other = (settings.digit + 7 * settings.seed + step) % STORED
        if labels[other] != labels[settings.digit]:
            return other
    return (settings.digit + 1) % STORED


def _seen(settings: DigitSettings) -> Tensor:
    """Which pixels are left: a square in the middle is covered, or the lower rows are missing."""
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    if settings.damage == "half missing":
        return (rows < 8 - round(8 * settings.amount)).flatten()
    reach = 4 * settings.amount
    inside = ((rows - 3.5).abs() < reach) & ((columns - 3.5).abs() < reach)
    return ~inside.flatten()


@lru_cache(maxsize=4)
def networks(beta: float) -> dict[str, HopfieldNetwork]:
    """One network for every map, all with the same patterns."""
    return {name: HopfieldNetwork(album().patterns, name, beta) for name in _MAPS}


@lru_cache
def _classic() -> dict[str, HopfieldNetwork]:
    """The networks of black and white patterns."""
    return {
        "classic, 1982": models.classic(album().signs),
        "dense, 2016": models.dense(album().signs, n=7),
    }


@lru_cache
def _memory() -> AssociativeMemory:
    return AssociativeMemory().fit(album().patterns)


def recalls(settings: DigitSettings) -> list[Recalled]:
    """What every network makes of the cue."""
    stored, cue = album(), cue_of(settings)
    length = float(
        stored.lengths.mean() if not cue.truth else stored.lengths[list(cue.truth)].mean()
    )
    answers = []
    for name, network in networks(settings.beta).items():
        found = network.retrieve(cue.vector, max_steps=_STEPS)
        pixels = stored.center + length * found.state
        answers.append(_from_network(name, pixels, found, network))
    answers.append(_from_memory(cue, length))
    signs = torch.where(cue.known, torch.where(cue.pixels >= 8, 1.0, -1.0), 0.0)
    for name, network in _classic().items():
        found = network.retrieve(signs.to(torch.float64), max_steps=_STEPS)
        answers.append(_from_network(name, 8 + 8 * found.state, found, network))
    return answers


def _from_network(
    name: str, pixels: Tensor, found: Retrieval, network: HopfieldNetwork
) -> Recalled:
    nearest = int(torch.cdist(found.state[None], network.memories).argmin())
    chosen = found.weights
    exact = "exactly" in found.describe(0)
    ids = tuple(chosen.nonzero().flatten().tolist()) if exact else ()
    if network.state.is_bounded and bool((found.state == network.memories[nearest]).all()):
        ids = (nearest,)
    shades = tuple(pixels.clamp(0, 16).tolist())
    return Recalled(
        name, shades, ids, nearest, bool(found.certified), int(found.steps), found.describe(0)
    )


def _from_memory(cue: Cue, length: float) -> Recalled:
    answer = _memory().recall(cue.vector[None], cue.known[None])
    number, certified = int(answer.ids[0]), bool(answer.certified[0])
    pattern = answer.patterns[0]
    exact = number >= 0 and bool((pattern == album().patterns[number]).all())
    nearest = int(torch.cdist(pattern[None], album().patterns).argmin())
    steps = int(answer.steps[0])
    summary = f"{f'pattern {number} exactly' if exact else 'a blend'}, after {steps} steps"
    pixels = (album().center + length * pattern).clamp(0, 16)
    ids = (number,) if exact else ()
    shades = tuple(pixels.tolist())
    return Recalled("AssociativeMemory", shades, ids, nearest, certified, steps, summary)


@dataclass(frozen=True)
class Drawing(Control):
    """64 shades, or nothing."""

    def read(self, text: str) -> str:
        if text and (len(text) != 64 or any(one not in _LEVELS for one in text)):
            raise ValueError(f"{self.label}: expected 64 shades of 0 to g, got {text[:20]!r}.")
        return text


class DigitsView(View[DigitSettings]):
    """Pick or draw a digit, damage it, and see what comes back."""

    name = "digits"
    short = "Digits"
    title = "Digits"
    lead = (
        f"{STORED} small digits are stored. Pick one below, damage it, or paint on the large one. "
        "Each network recalls what it can: an exact copy, with its number and a certificate, or a "
        "blend."
    )
    fields = (
        Choice("damage", "Damage", DAMAGES),
        Slider("amount", "How much", 0.0, 1.0, step=0.05),
        Slider("beta", "Inverse temperature β", 1.0, 300.0, log=True),
        Slider("digit", "Stored digit", 0, STORED - 1, whole=True, step=1),
        Number("seed", "Seed", 0, 9999, whole=True),
        Drawing("drawn", "Drawing"),
    )
    buttons = (
        Button("again", "Damage it differently"),
        Button("blank", "Empty page to draw on"),
        Button("stored", "Back to the stored digit"),
    )

    def defaults(self) -> DigitSettings:
        return DigitSettings()

    def moved(self, settings: DigitSettings, event: Event) -> DigitSettings:
        kind, _, place = event.handle.partition(":")
        if not place.isdigit() or len(place) > 4:
            return settings
        if kind == "pick" and int(place) < STORED:
            return replace(settings, digit=int(place), drawn="")
        if kind == "pixel" and int(place) < 64:
            return replace(settings, drawn=self._painted(settings, int(place), event.value))
        return settings

    def _painted(self, settings: DigitSettings, place: int, value: str) -> str:
        shades = settings.drawn or "".join(
            _LEVELS[round(each)] for each in cue_of(settings).pixels.tolist()
        )
        return shades[:place] + ("0" if value == "0" else "g") + shades[place + 1 :]

    def act(self, settings: DigitSettings, name: str) -> DigitSettings:
        if name == "again":
            return replace(settings, seed=(settings.seed + 1) % 10_000, drawn="")
        if name == "blank":
            return replace(settings, drawn="0" * 64)
        return replace(settings, drawn="")

    def changed(
        self, settings: DigitSettings, name: str, text: str
    ) -> tuple[DigitSettings, list[str]]:
        new, notes = super().changed(settings, name, text)
        if name in ("digit", "damage", "amount") and settings.drawn:
            new = replace(new, drawn="")
        return new, notes

    def show(self, settings: DigitSettings, width: float, *, fine: bool = True) -> Shown:  # noqa: ARG002
        cue, answers = cue_of(settings), recalls(settings)
        picture = draw_digits(settings.digit, cue, answers, album(), width)
        right = [each.name for each in answers if each.ids and set(each.ids) == set(cue.truth)]
        lines = [f"yes:Recalled exactly: {'; '.join(right)}."] if right else []
        if cue.truth and not right:
            lines = ["no:No network recalled it exactly."]
        numbers = {
            each.name: {
                "ids": list(each.ids),
                "certified": each.certified,
                "steps": each.steps,
                "pixels": list(each.pixels),
            }
            for each in answers
        }
        return Shown(picture, lines, code(settings), numbers)


def code(settings: DigitSettings) -> str:
    """A program that recalls the same cue."""
    return _code_of_cue(settings) + _CODE_OF_RESULTS + _code_of_networks(settings)


def _code_of_cue(settings: DigitSettings) -> str:
    cue = cue_of(settings)
    vector = [float(f"{each:.17g}") for each in cue.vector.tolist()]
    seen = [int(each) for each in cue.pixels >= 8]
    truth = list(cue.truth)
    return f"""import torch
import hopfy
from sklearn.datasets import load_digits
from torch.nn.functional import normalize

pixels = torch.as_tensor(load_digits().data[:{STORED}], dtype=torch.float64)
center = pixels.mean(0)
lengths = (pixels - center).norm(dim=-1)
patterns = normalize(pixels - center, dim=-1)
signs = torch.where(pixels >= 8, 1.0, -1.0).to(torch.float64)

truth = {truth}  # the digits in the cue; none for a drawing
cue = torch.tensor({vector}, dtype=torch.float64)
known = torch.tensor({[int(each) for each in cue.known]}, dtype=torch.bool)
dark = torch.tensor({seen}, dtype=torch.bool)
length = float(lengths[truth].mean() if truth else lengths.mean())
"""


_CODE_OF_RESULTS = """
result = {}


def keep(name, state, found, network, image):
    nearest = int(torch.cdist(state[None], network.memories).argmin())
    ids = found.weights.nonzero().flatten().tolist() if "exactly" in found.describe(0) else []
    if network.state.is_bounded and bool((state == network.memories[nearest]).all()):
        ids = [nearest]
    result[name] = {
        "ids": ids,
        "certified": bool(found.certified),
        "steps": int(found.steps),
        "pixels": image.clamp(0, 16).tolist(),
    }
    print(name, found.describe(0))
"""


def _code_of_networks(settings: DigitSettings) -> str:
    return f"""

for name in {list(_MAPS)}:
    network = hopfy.HopfieldNetwork(patterns, name, {settings.beta!r})
    found = network.retrieve(cue, max_steps={_STEPS})
    keep(name, found.state, found, network, center + length * found.state)

answer = hopfy.AssociativeMemory().fit(patterns).recall(cue[None], known[None])
number = int(answer.ids[0])
exact = number >= 0 and bool((answer.patterns[0] == patterns[number]).all())
result["AssociativeMemory"] = {{
    "ids": [number] if exact else [],
    "certified": bool(answer.certified[0]),
    "steps": int(answer.steps[0]),
    "pixels": (center + length * answer.patterns[0]).clamp(0, 16).tolist(),
}}

start = torch.where(known, torch.where(dark, 1.0, -1.0), 0.0).to(torch.float64)
for name, network in {{
    "classic, 1982": hopfy.models.classic(signs),
    "dense, 2016": hopfy.models.dense(signs, n=7),
}}.items():
    found = network.retrieve(start, max_steps={_STEPS})
    keep(name, found.state, found, network, 8 + 8 * found.state)
"""
