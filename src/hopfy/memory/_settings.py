"""A memory's settings: checked when given, and read from a file with the same checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from hopfy._checks import BETA, check_parameter
from hopfy.omega import Omega, omega_from

__all__ = ["Compare", "Settings"]

Compare = Literal["distance", "dot"]


@dataclass(frozen=True)
class Settings:
    """What a memory is made with; ``beta`` is None where it is chosen from the patterns."""

    omega: Omega
    beta: float | None
    compare: Compare

    @classmethod
    def checked(cls, omega: Omega | str, beta: float | str, compare: str) -> Settings:
        omega = omega_from(omega)
        if omega.largest_mass != 1:
            raise TypeError(
                f"expected an omega that recalls single patterns, got {omega}; use HopfieldNetwork "
                "for associations of several patterns."
            )
        if compare not in ("distance", "dot"):
            raise ValueError(f"expected compare to be 'distance' or 'dot', got {compare!r}.")
        if isinstance(beta, str):
            if beta != "auto":
                raise ValueError(f"expected beta to be 'auto' or a number > 0, got {beta!r}.")
            if not 0 < omega.margin < math.inf:
                raise ValueError(
                    f"expected a number for beta, as {omega} has no margin to choose one from, got "
                    "'auto'; pass beta=..., or a map with a margin such as 'sparsemax'."
                )
            return cls(omega, None, compare)  # type: ignore[arg-type]
        check_parameter(beta, BETA)
        return cls(omega, float(beta), compare)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        beta = "auto" if self.beta is None else self.beta
        return {"omega": self.omega.spec(), "beta": beta, "compare": self.compare}

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> Settings:
        """Raises KeyError, TypeError or ValueError where the table was not written by `save`."""
        omega = table["omega"]
        if isinstance(omega, list):  # files of hopfy 0.1: a family and alpha as text
            family, alpha = omega
            omega = {"family": family} | ({} if family == "softmax" else {"alpha": float(alpha)})
        return cls.checked(Omega.from_spec(omega), table["beta"], table["compare"])
