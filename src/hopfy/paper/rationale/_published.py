"""Published numbers of Table 3 and of its longer form in the appendix.

Source: Santos, Niculae, McNamee, Martins: Sparse and Structured Hopfield Networks, ICML 2024
(arXiv 2402.13725); what is not theirs they take from Guerreiro & Martins, 2021.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RATIONALES", "PublishedRationale", "Spread"]


class Spread(NamedTuple):
    """Mean, least and greatest of five seeds, as printed: the mean may lie outside."""

    mean: float
    least: float
    greatest: float


class PublishedRationale(NamedTuple):
    """F1 on three data sets; mean squared error and overlap with human rationales on Beer."""

    sst: Spread
    ag_news: Spread
    imdb: Spread
    beer: Spread
    beer_overlap: Spread


def _line(*numbers: float) -> PublishedRationale:
    return PublishedRationale(*(Spread(*numbers[i : i + 3]) for i in range(0, 15, 3)))


RATIONALES = {
    "k-subsets": _line(
        0.81, 0.81, 0.82, 0.93, 0.92, 0.93, 0.90, 0.90, 0.90, 0.017, 0.017, 0.018, 0.42, 0.29, 0.62
    ),
    "sequential k-subsets": _line(
        0.81, 0.80, 0.83, 0.93, 0.93, 0.93, 0.90, 0.90, 0.90, 0.020, 0.018, 0.021, 0.63, 0.49, 0.70
    ),
    "SPECTRA": _line(
        0.80, 0.79, 0.81, 0.92, 0.92, 0.93, 0.90, 0.89, 0.90, 0.017, 0.016, 0.019, 0.61, 0.56, 0.68
    ),
    "HardKuma": _line(
        0.80, 0.80, 0.81, 0.90, 0.87, 0.88, 0.87, 0.90, 0.91, 0.019, 0.016, 0.020, 0.37, 0.00, 0.90
    ),
    "sparsemax": _line(
        0.82, 0.81, 0.83, 0.93, 0.93, 0.93, 0.89, 0.89, 0.90, 0.019, 0.016, 0.021, 0.48, 0.41, 0.55
    ),
    "fusedmax": _line(
        0.81, 0.81, 0.82, 0.92, 0.91, 0.92, 0.88, 0.87, 0.89, 0.018, 0.017, 0.019, 0.39, 0.29, 0.53
    ),
}
"""By method. The published softmax attention and the network without a rationale do not exist."""
