"""What the report says about Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

__all__ = ["caption", "explanation"]


def caption(results: Mapping[str, Any]) -> str:
    """Below the picture."""
    return (
        "Mean and deviation over the seeds, in percent: accuracy for bags of digits, area under "
        "the ROC curve for the animals. Small print: the paper's numbers. The best of a column is "
        "framed."
    )


def explanation(results: Mapping[str, Any]) -> str:
    """Above it."""
    return f"{len(results['cells'])} cells, {fmean(c['test'][0] for c in results['cells']):.1f}"
