"""The bytes that a recall may use beyond its answer, and who may use them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RecallBudget"]

_MOST_CUES = 1024
# Bytes of one weight while it is read out, of one coordinate of a pattern that competes for a cue,
# of one dense weight, and of one coordinate of a streamed cue; measured.
_READ, _COMPETING, _DENSE, _STREAMED = 160, 24, 96, 64


class RecallBudget(NamedTuple):
    """How a recall divides its ``scratch`` bytes among what exists at the same time.

    Half belongs to the search and to the retrieval that follows it, one after the other; an eighth to
    the weights that one of them has delivered while they are read out; a quarter to the weights that
    the answer keeps, which are computed again when they are asked for and did not fit. The rest is
    for what the allocator does not give back. Every share is enough for one cue at least, which needs
    O(patterns in its mixture), and O(these x coordinates) where only a part of the cue is known.
    """

    scratch: int

    @property
    def search(self) -> int:
        return max(1, self.scratch // 2)

    @property
    def kept(self) -> int:
        return self.scratch // 4

    def read(self, patterns: int) -> int:
        """Cues whose mixtures of up to so many patterns are read out at once."""
        return self._cues(8 * _READ * patterns)

    def competing(self, patterns: int, size: int) -> int:
        """Cues of which each has so many candidates (``size`` coordinates) to decide between."""
        return self._cues(8 * _COMPETING * patterns * size)

    def dense(self, patterns: int) -> int:
        """Cues with weights for all patterns."""
        return self._cues(2 * _DENSE * patterns)

    def streamed(self, size: int) -> int:
        """Cues (``size`` coordinates) past which all patterns are streamed, 1024 at a time."""
        return self._cues(16 * 1024 + 2 * _STREAMED * size)

    def _cues(self, parts_of_scratch: int) -> int:
        return max(1, min(_MOST_CUES, self.scratch // parts_of_scratch))
