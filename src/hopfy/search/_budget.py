"""The bytes that a search may use beyond its answer, and who may use them."""

from __future__ import annotations

from typing import NamedTuple

from hopfy._kernels import select

__all__ = ["SCRATCH", "Budget", "Pass", "peak_bytes"]

SCRATCH = 256 << 20
"""Bytes that a search may use beyond its answer, by default."""
_MOST_QUERIES = 1024
_MOST_ROOM, _LEAST_ROOM = 4096, 256
# Bytes of one candidate, of one exact score with what is selected from it, and of one entry of a
# row that a map works on, which is padded to at most twice its length; measured.
_CANDIDATE, _SCORE, _MAPPED = 12, 32, 160


class Pass(NamedTuple):
    """Queries of one pass over the memories, and candidates of each that there is room for."""

    queries: int
    room: int


class Budget(NamedTuple):
    """How one search divides its ``scratch`` bytes among what exists at the same time.

    Half belongs to the candidates and scores of the queries of one pass, a quarter to what is kept
    between two passes, and a quarter to the map that makes weights of some candidates. Each share is
    enough for one query at least, which needs O(memories).
    """

    scratch: int

    def one_pass(self, memories: int, rank: int) -> Pass:
        """For ``memories`` of which a query keeps those near the ``rank``-th best."""
        share = self.scratch // (2 * _CANDIDATE)
        room = max(_LEAST_ROOM, min(_MOST_ROOM, share // _MOST_QUERIES))
        room = min(memories, max(room, 2 * rank)) + 1
        return Pass(max(1, min(_MOST_QUERIES, share // room)), room)

    def whole_rows(self, memories: int) -> int:
        """Queries whose exact scores of all memories are held at once."""
        return max(1, self.scratch // (2 * _SCORE * max(1, memories)))

    def looked_at(self, memories: int) -> int:
        """Queries between their first and their second pass."""
        return max(1, self.scratch // (4 * peak_bytes(memories)))

    @property
    def mapped(self) -> int:
        """Candidates of which a map makes weights at once."""
        return max(1, self.scratch // (4 * _MAPPED))


def peak_bytes(memories: int) -> int:
    """Bytes that the first of two passes keeps of each query."""
    return 8 * (memories // select.CHUNK + 1)
