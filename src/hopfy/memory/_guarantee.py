r"""Which patterns can be recalled exactly, and the beta that makes it so (Prop. 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy.memory._equal_lengths import squared_lengths
from hopfy.memory._store import Contents, Snapshot
from hopfy.omega import Omega

__all__ = ["Guarantee", "guarantee"]

# Half of the smallest separation covers the margin, the other half is room for noise in the cue.
_ROOM = 2.0


@dataclass(frozen=True)
class Guarantee:
    """What the separations of one snapshot promise.

    Attributes:
        margin: the margin m of omega.
        beta: the inverse temperature in force.
        chosen: whether beta was chosen from the separations.
        delta: (N,) the separations.
        rival: (N,) the row that sets each separation.
        hopeless: (N,) patterns that no beta makes a fixed point, or none that the dtype can tell
            apart from their rival.
    """

    margin: float
    beta: float
    chosen: bool
    delta: Tensor
    rival: Tensor
    hopeless: Tensor

    @property
    def exact(self) -> Tensor:
        """(N,) patterns that are fixed points at this beta."""
        return ~self.hopeless & (self.delta * self.beta >= self.margin)

    def explain(self, contents: Contents) -> str:
        """The text for people."""
        return "\n".join([*self._what(contents), *self._why(contents), *self._which(contents)])

    def _what(self, contents: Contents) -> list[str]:
        count, size = contents.patterns.shape
        how = "by inner product"
        if contents.radius is not None:
            how = f"by Euclidean distance (lifted to a sphere of radius {contents.radius:.4g})"
        return [
            f"{count} patterns of {size} coordinates, compared {how}.",
            f"Pattern i is recalled exactly if and only if its separation Delta_i is at least m / "
            f"beta, where m = {self.margin:.4g} is the margin of omega (Prop. 2).",
        ]

    def _why(self, contents: Contents) -> list[str]:
        if not self.chosen:
            needed = self.margin / self.beta
            return [f"beta = {self.beta:.6g} was given, so Delta_i >= {needed:.4g} is needed."]
        hopeful = torch.where(self.hopeless, torch.inf, self.delta)
        if not bool(hopeful.isfinite().any()):
            return [f"beta = {self.beta:.6g}: no two patterns can be told apart, so any beta does."]
        closest = int(hopeful.argmin())
        one, other = int(contents.ids[closest]), int(contents.ids[self.rival[closest]])
        return [
            f"The smallest positive separation is {float(self.delta[closest]):.4g} (pattern {one} "
            f"against pattern {other}), so beta = {_ROOM:g} m / Delta = {self.beta:.6g}: half of "
            "the separation covers the margin, the other half is room for noise in the cue."
        ]

    def _which(self, contents: Contents) -> list[str]:
        lines = [f"{int(self.exact.sum())} of {self.delta.numel()} patterns are fixed points."]
        weak = ~self.exact & ~self.hopeless
        if bool(weak.any()):
            needed = self.margin / float(self.delta[weak].min())
            lines.append(
                f"{_named(contents.ids[weak])} would be recalled exactly with beta >= {needed:.6g}."
            )
        if bool(self.hopeless.any()):
            lines.append(
                f"{_named(contents.ids[self.hopeless])} can never be certified: stored twice, "
                "dominated by a longer pattern, or closer to another than "
                f"{contents.rows.dtype} can tell."
            )
        return lines


def guarantee(snapshot: Snapshot, omega: Omega, beta: float | None) -> Guarantee:
    """Judge the snapshot at ``beta``; None chooses it from the separations."""
    separations = snapshot.separations()
    delta, rows = separations.delta, snapshot.contents.rows
    # Below one unit in the last place of the largest score, products of the dtype are noise.
    lengths = squared_lengths(rows)
    largest = float((lengths if snapshot.alive is None else lengths[snapshot.alive]).max())
    hopeless = delta <= torch.finfo(rows.dtype).eps * largest
    chosen = beta is None
    if beta is None:
        hopeful = delta[~hopeless & delta.isfinite()]
        scale = float(hopeful.min()) if hopeful.numel() else max(largest, 1.0)
        beta = _ROOM * omega.margin / scale
        if beta == math.inf:
            raise ValueError(
                f"expected separations that a finite beta can resolve, got {scale:.3g}; rescale the "
                "patterns, or give beta as a number."
            )
    return Guarantee(omega.margin, beta, chosen, delta, separations.rival, hopeless)


def _named(ids: Tensor) -> str:
    shown = ", ".join(str(one) for one in ids[:10].tolist())
    more = f" and {ids.numel() - 10} more" if ids.numel() > 10 else ""
    return f"Pattern{'s' * (ids.numel() != 1)} {shown}{more}"
