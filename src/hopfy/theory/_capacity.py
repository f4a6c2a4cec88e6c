r"""How many patterns can be stored and recalled exactly (Prop. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopfy.omega import Omega
from hopfy.theory._separation import lead

__all__ = ["Capacity", "random_capacity", "separated_capacity"]


@dataclass(frozen=True)
class Capacity:
    r"""A number of patterns on a sphere, and the perturbation under which they are recalled.

    Attributes:
        log_patterns: the natural logarithm of the number of patterns.
        epsilon: queries this close to a pattern recall it exactly in one step. Not positive: the
            pair (beta, norm) is too small for any guarantee.
        angle: the smallest angle between two patterns.
        failure: the probability that randomly placed patterns are closer than that.
    """

    log_patterns: float
    epsilon: float
    angle: float
    failure: float = 0.0

    @property
    def patterns(self) -> float:
        """The number of patterns, rounded down; infinite beyond the largest float."""
        return math.floor(math.exp(self.log_patterns)) if self.log_patterns < 709 else math.inf


def separated_capacity(
    dimension: int,
    omega: Omega | str,
    beta: float,
    norm: float = 1.0,
    *,
    angle: float = math.pi / 3,
) -> Capacity:
    r"""Patterns placed at will on the sphere of radius M, pairwise ``angle`` or more apart.

    .. math:: N \ge \frac{\cos\phi}{\kappa_{D-1} \sin^{D-1}\phi}, \qquad
              \epsilon \le \frac M2 (1 - \cos\phi) - \frac{m}{2 \beta M}.

    At :math:`\phi = \pi/3` this is Prop. 3: :math:`N = O((2/\sqrt3)^D)` and
    :math:`\epsilon \le M/4 - m/(2\beta M)` (Eq. 10). The paper calls such patterns equidistant; no more than
    D + 1 points of a sphere are, so "separated by at least" is meant. Its count carries a factor
    :math:`1 + o(1)`; the one here holds in every dimension. (A cap of angle :math:`\phi` covers a
    share of at most :math:`\kappa_{D-1} \sin^{D-1}\phi / \cos\phi` of the sphere, and patterns can
    be added until the caps around them cover it.)

    >>> from hopfy import theory
    >>> capacity = theory.separated_capacity(100, "sparsemax", beta=8.0)
    >>> f"{capacity.patterns:.1e} patterns, epsilon = {capacity.epsilon:.4f}"
    '1.9e+07 patterns, epsilon = 0.1875'
    """
    _check_sphere(dimension, norm)
    if not 0 < angle < math.pi / 2:
        raise ValueError(f"expected an angle between 0 and pi/2, got {angle}.")
    count = math.log(math.cos(angle)) - _log_kappa(dimension)
    count -= (dimension - 1) * math.log(math.sin(angle))
    # One pattern always fits, and the formula may promise less than that in low dimensions.
    return Capacity(max(count, 0.0), _epsilon(omega, beta, norm, angle), angle)


def random_capacity(
    dimension: int,
    omega: Omega | str,
    beta: float,
    norm: float = 1.0,
    *,
    zeta: float,
    failure: float,
) -> Capacity:
    r"""Patterns drawn uniformly on the sphere of radius M, recalled with probability 1 - failure.

    .. math:: N = \sqrt{2p / \kappa_{D-1}}\ \zeta^{(D-1)/2}, \qquad
              \epsilon \le \frac M2 \left(1 - \cos\frac1\zeta\right) - \frac{m}{2\beta M}
              \qquad \text{(Prop. 3, Eqs. 11, 29 and 30)},

    since then all angles are at least :math:`1/\zeta` with probability :math:`1 - p`: N random points
    have :math:`P(\alpha_{\min} < a) \le \frac12 \kappa_{D-1} N^2 a^{D-1}` (Eq. 25), and exact
    retrieval asks for :math:`M^2 (1 - \cos\alpha_{\min}) \ge m/\beta + 2M\epsilon` (Eqs. 26 and 27),
    which fails with probability p at :math:`a = 1/\zeta` (Eq. 28). The radius is
    positive only if :math:`\zeta < 1/\arccos(1 - m/(\beta M^2))`.

    >>> from hopfy import theory
    >>> theory.random_capacity(64, "sparsemax", beta=40.0, zeta=1.5, failure=0.01).patterns
    222654
    """
    _check_sphere(dimension, norm)
    if not zeta > 1:
        raise ValueError(f"expected zeta > 1, got {zeta}.")
    if not 0 < failure <= 1:
        raise ValueError(f"expected a failure probability in (0, 1], got {failure}.")
    count = (math.log(2 * failure) - _log_kappa(dimension)) / 2
    count += (dimension - 1) / 2 * math.log(zeta)
    return Capacity(count, _epsilon(omega, beta, norm, 1 / zeta), 1 / zeta, failure)


def _epsilon(omega: Omega | str, beta: float, norm: float, angle: float) -> float:
    # 1 - cos(angle) without cancellation.
    return norm * math.sin(angle / 2) ** 2 - lead(omega, beta) / (2 * norm)


def _log_kappa(dimension: int) -> float:
    r""":math:`\log\kappa_{D-1}`; :math:`\kappa_d = \Gamma((d+1)/2) / (d\sqrt\pi\,\Gamma(d/2))`."""
    d = dimension - 1
    return math.lgamma((d + 1) / 2) - math.lgamma(d / 2) - math.log(d) - math.log(math.pi) / 2


def _check_sphere(dimension: int, norm: float) -> None:
    if not isinstance(dimension, int) or dimension < 2:
        raise ValueError(f"expected a dimension >= 2, got {dimension!r}.")
    if not 0 < norm < math.inf:
        raise ValueError(f"expected a finite norm > 0, got {norm}.")
