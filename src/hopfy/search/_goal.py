r"""How far below the best scores a map looks."""

from __future__ import annotations

from typing import NamedTuple

from hopfy.omega import Omega

__all__ = ["Goal", "goal_of"]


class Goal(NamedTuple):
    """All scores above the ``rank``-th best one minus ``reach``.

    With ``ties`` False a tie with the rank-th best loses to the memory stored first, so exactly
    ``rank`` memories are found.
    """

    rank: int
    reach: float
    ties: bool = True


def goal_of(omega: Omega, beta: float) -> Goal | None:
    r"""Where the support of ``omega`` must lie, in units of :math:`X q`; None: anywhere.

    Entmax and normmax give weight 0 to scores that trail the best by the margin, k-subsets to
    those that trail the k-th best by 1: there :math:`\tau \ge \theta_{(k)} - 1`.

    >>> import hopfy
    >>> goal_of(hopfy.Tsallis(1.5), beta=4.0)
    Goal(rank=1, reach=0.5, ties=True)
    >>> goal_of(hopfy.SparseMAP(hopfy.structures.KSubsets(3)), beta=4.0)
    Goal(rank=3, reach=0.25, ties=True)
    """
    if omega.varies_by_row:
        raise ValueError(
            f"expected an omega with the same parameters for all queries, got {omega!r}."
        )
    reach = omega.reach(beta)
    return None if reach is None else Goal(*reach)
