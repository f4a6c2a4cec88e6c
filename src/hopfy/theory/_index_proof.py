"""Proofs of exact retrieval through an index."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.search import ExactIndex
from hopfy.theory._proof import exact_margin, proves_fixed_point

__all__ = ["proves_with_index"]


def proves_with_index(index: ExactIndex, members: Tensor, omega: Omega, beta: Tensor) -> Tensor:
    """`proves_fixed_point` for sets ``members`` (P, k) of rows of an index, at ``beta`` (P,).

    One search decides most sets: nothing comes within the margin of their members, or something
    clearly does. What is too close for float64 is settled in rational arithmetic. The index remembers
    what was decided about single patterns.
    """
    margin = exact_margin(omega, members.shape[1])
    if margin is None or members.shape[0] == 0:
        return _whole(index, members, omega, beta)
    lead = float(margin) / beta
    if members.shape[1] > 1:
        return _searched(index, members, omega, beta, lead)
    # What was decided once is remembered: a proof holds for every smaller lead.
    known, one = index.proven_leads(), members[:, 0]
    proven = known.proven[one] >= lead
    asked = (~proven & (known.refuted[one] > lead)).nonzero().flatten()
    if asked.numel():
        found = _searched(index, members[asked], omega, beta[asked], lead[asked])
        proven[asked] = found
        yes, no = asked[found], asked[~found]
        known.proven[one[yes]] = torch.maximum(known.proven[one[yes]], lead[yes])
        known.refuted[one[no]] = torch.minimum(known.refuted[one[no]], lead[no])
    return proven


def _searched(
    index: ExactIndex, members: Tensor, omega: Omega, beta: Tensor, lead: Tensor
) -> Tensor:
    found = index.verdicts(members, lead)
    proven = found > 0
    rest = (found == 0).nonzero().flatten()
    if rest.numel():
        proven[rest] = _whole(index, members[rest], omega, beta[rest])
    return proven


def _whole(index: ExactIndex, members: Tensor, omega: Omega, beta: Tensor) -> Tensor:
    """`proves_fixed_point` among the rows that were not removed."""
    living = index.living
    if living is None:
        return proves_fixed_point(index.memories, members, omega, beta)
    return proves_fixed_point(
        index.memories[living], torch.searchsorted(living, members), omega, beta
    )
