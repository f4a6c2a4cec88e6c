"""Damaged digits, recalled: the library in one minute, with the data that scikit-learn brings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hopfy.memory import AssociativeMemory
from hopfy.network import HopfieldNetwork
from hopfy.omega import SparseMAP
from hopfy.paper._drawing import darken
from hopfy.paper.report import Picture, Section, Table
from hopfy.plot import recall_grid
from hopfy.structures import KSubsets, SequentialKSubsets

__all__ = ["HEADINGS", "Demo", "Outcome", "recall_digits", "section"]

HEADINGS = ("damage", "map", "exact", "right", "proven", "steps", "E before", "E after")

STORED = 200
PAIRED = 20  # stored when two digits are to be told apart that lie on top of each other
BETA = 30.0
MAPS = ("softmax", "1.5-entmax", "sparsemax", "5-normmax")
_STEPS = 60
_SHOWN = 10


@dataclass(frozen=True)
class Outcome:
    """How one map did on one kind of damage.

    Attributes:
        damage: what was done to the digits.
        recalled_by: the map, or the memory.
        exact: percent of the cues that came back as what was stored, bit for bit.
        right: percent whose answer is nearest to what was stored.
        certified: percent with a proof that the answer is an exact fixed point.
        steps: mean number of updates.
        before: mean energy of the cues; None where none was computed.
        after: mean energy of the answers.
    """

    damage: str
    recalled_by: str
    exact: float
    right: float
    certified: float
    steps: float
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Demo:
    """All outcomes, and pictures with their captions."""

    outcomes: list[Outcome]
    pictures: list[Picture]


def recall_digits(seed: int = 0) -> Demo:
    """Store digits, damage them, recall them with every map.

    Raises:
        ImportError: without scikit-learn, whose digits these are.
    """
    images = _digits(STORED)
    # Unit length around the mean: then similarity is the cosine, and no digit dominates.
    center = images.mean(0)
    patterns = normalize(images - center, dim=-1)
    generator = torch.Generator().manual_seed(seed)
    outcomes, pictures = [], []
    for damage, cues, known in _damages(patterns, generator):
        networks = {name: HopfieldNetwork(patterns, name, BETA) for name in MAPS}
        outcomes += [_by_network(damage, name, networks[name], cues) for name in MAPS]
        memory = AssociativeMemory().fit(patterns)
        outcomes.append(_by_memory(damage, memory, patterns, cues, known))
        seen = cues if known is None else cues.masked_fill(~known, torch.nan)
        rows = {"stored": patterns[:_SHOWN], damage: seen[:_SHOWN], **networks}
        light, dark = _picture(rows, images, cues)
        pictures.append(Picture(light, _caption(damage), dark))
    outcomes += _two_at_once(patterns[:PAIRED], generator)
    return Demo(outcomes, pictures)


def _digits(count: int) -> Tensor:
    from sklearn.datasets import load_digits

    return torch.as_tensor(load_digits().data[:count], dtype=torch.float64)


def _damages(
    patterns: Tensor, generator: torch.Generator
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Names, cues, and which pixels are known where some are not."""
    noise = torch.randn(patterns.shape, generator=generator, dtype=patterns.dtype)
    yield "noise", patterns + 0.1 * noise, None
    hidden = torch.zeros(8, 8, dtype=torch.bool)
    hidden[2:6, 2:6] = True
    yield "covered", patterns.masked_fill(hidden.flatten(), 0.0), ~hidden.flatten()
    lower = torch.arange(64) >= 32
    yield "half missing", patterns.masked_fill(lower, 0.0), ~lower


def _percent(flags: Tensor) -> float:
    return 100 * float(flags.double().mean())


def _by_network(damage: str, name: str, network: HopfieldNetwork, cues: Tensor) -> Outcome:
    found = network.retrieve(cues, max_steps=_STEPS, trace=True)
    own = torch.arange(cues.shape[0])
    nearest = torch.cdist(found.state, network.memories).argmin(-1)
    energies = [] if found.energies is None else [float(e.mean()) for e in found.energies]
    return Outcome(
        damage,
        name,
        exact=_percent(found.pattern == own),
        right=_percent(nearest == own),
        certified=_percent(found.certified),
        steps=float(found.steps.double().mean()),
        before=energies[0] if energies else None,
        after=energies[-1] if energies else None,
    )


def _by_memory(
    damage: str, memory: AssociativeMemory, patterns: Tensor, cues: Tensor, known: Tensor | None
) -> Outcome:
    answer = memory.recall(cues, known)
    own = torch.arange(cues.shape[0])
    return Outcome(
        damage,
        "memory",
        exact=_percent((answer.patterns == patterns).all(-1)),
        right=_percent(answer.ids == own),
        certified=_percent(answer.certified),
        steps=float(answer.steps.double().mean()),
    )


def _two_at_once(patterns: Tensor, generator: torch.Generator) -> list[Outcome]:
    """Two digits on top of each other: a structured map recalls both as one association."""
    order = torch.arange(patterns.shape[0])
    strangers = torch.stack([order, (order + patterns.shape[0] // 2) % patterns.shape[0]], 1)
    neighbors = torch.stack([order[:-1], order[1:]], 1)
    return [
        _of_pairs("two at once", KSubsets(2), patterns, strangers, generator),
        _of_pairs("neighbors", SequentialKSubsets(2, 2.0), patterns, neighbors, generator),
    ]


def _of_pairs(
    damage: str,
    structure: KSubsets | SequentialKSubsets,
    patterns: Tensor,
    pairs: Tensor,
    generator: torch.Generator,
) -> Outcome:
    together = patterns[pairs].sum(1)
    noise = torch.randn(together.shape, generator=generator, dtype=together.dtype)
    network = HopfieldNetwork(patterns, SparseMAP(structure), BETA)
    found = network.retrieve(together + 0.05 * noise, max_steps=_STEPS, trace=True)
    weights = found.weights
    chosen = weights.topk(2).indices.sort(-1).values
    energies = [] if found.energies is None else [float(e.mean()) for e in found.energies]
    return Outcome(
        damage,
        structure.name,
        exact=_percent((weights.gather(1, pairs) == 1).all(-1)),
        right=_percent((chosen == pairs.sort(-1).values).all(-1)),
        certified=_percent(found.certified),
        steps=float(found.steps.double().mean()),
        before=energies[0] if energies else None,
        after=energies[-1] if energies else None,
    )


def _picture(rows: dict[str, Any], images: Tensor, cues: Tensor) -> tuple[bytes, bytes]:
    """The recalled digits for a light and for a dark page."""
    from matplotlib.figure import Figure

    center = images.mean(0)
    lengths = (images - center).norm(dim=-1, keepdim=True)
    patterns = normalize(images - center, dim=-1)
    figure = Figure(figsize=(0.56 * _SHOWN + 1.6, 0.56 * len(rows) + 0.2))
    recall_grid(
        rows,
        queries=cues[:_SHOWN],
        truth=patterns[:_SHOWN],
        render=lambda states: center + lengths[:_SHOWN] * states,
        ax=figure.subplots(),
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130, bbox_inches="tight")
    darken(figure)
    dark = io.BytesIO()
    figure.savefig(dark, format="png", dpi=130, bbox_inches="tight")
    return file.getvalue(), dark.getvalue()


def _caption(damage: str) -> str:
    return (
        f"Ten of the {STORED} stored digits, the cues ({damage}), and what each map recalls. A green "
        "frame: the stored digit came back bit for bit; a dotted orange one: something else did, "
        "for softmax always a blend, however close."
    )


def section(demo: Demo) -> Section:
    """The part of the report about the digits."""
    lines = [
        [
            one.damage,
            one.recalled_by,
            f"{one.exact:.1f}%",
            f"{one.right:.1f}%",
            f"{one.certified:.1f}%",
            f"{one.steps:.1f}",
            *("–" if e is None else f"{e:.3f}" for e in (one.before, one.after)),
        ]
        for one in demo.outcomes
    ]
    return Section(
        "demo",
        "Damaged digits, recalled",
        f"{STORED} digits are stored, damaged and recalled (beta = {BETA:g}). Softmax never gives "
        "a stored digit back, only a blend that may be close; the sparse maps give it back bit for "
        "bit, in a step or two, with a proof that it is a fixed point. A memory that is told which "
        f"pixels are missing does best. The structured maps see two of {PAIRED} digits on top of "
        "each other and, nearly always, name both.",
        demo.pictures,
        [Table(HEADINGS, lines)],
        [
            "Exact: came back bit for bit. Right: nearest to the stored one. Proven: certified to be "
            "an exact fixed point. Steps and energies E are means. Memory: AssociativeMemory, told "
            "which pixels are missing where some are."
        ],
    )
