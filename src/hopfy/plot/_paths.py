"""How the maps' answers change with the temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hopfy.omega import Omega, omega_from
from hopfy.plot.style import color_of, fresh_axes, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["regularization_path"]

_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def regularization_path(
    omega: Omega | str | Sequence[Omega | str],
    theta: Tensor,
    temperatures: Tensor | None = None,
    *,
    legend: bool = True,
    ax: Axes | Sequence[Axes] | None = None,
) -> Any:
    r"""The weights :math:`\hat y_\Omega(\theta / T)` over the temperature T (Fig. 2).

    Args:
        omega: a regularizer or its name; several give one panel each.
        theta: (N,) scores.
        temperatures: (T,) positive numbers; by default from 0.01 to 1.5 times the scores' spread.
        legend: whether to say which line belongs to which score.
        ax: the axes, one for each omega; a new figure by default.

    Returns:
        The axes; a list of them for several omegas.

    >>> import torch, hopfy.plot
    >>> ax = hopfy.plot.regularization_path("sparsemax", torch.tensor([1.0, -0.5, 0.2]))
    >>> len(ax.lines)
    3
    """
    theta = _checked_theta(theta)
    if temperatures is None:
        spread = float(theta.max() - theta.min()) or 1.0
        temperatures = torch.linspace(0.01, 1.5 * spread, 400, dtype=theta.dtype)
    if isinstance(omega, Omega | str):
        one = fresh_axes(ax if not isinstance(ax, Sequence) else ax[0], 4.2, 3.2)
        return _path(omega_from(omega), theta, temperatures, legend, one)
    omegas = [omega_from(each) for each in omega]
    if ax is None:
        width = 2.6 * len(omegas) + 1.0
        figure = pyplot().figure(figsize=(width, 2.8), layout="constrained")
        axes = list(figure.subplots(1, len(omegas), sharey=True, squeeze=False)[0])
    else:
        axes = list(ax) if isinstance(ax, Sequence) else [ax]
    if len(axes) != len(omegas):
        raise ValueError(f"expected one axes for each of {len(omegas)} maps, got {len(axes)}.")
    last = len(omegas) - 1
    for place, (each, one) in enumerate(zip(omegas, axes, strict=True)):
        _path(each, theta, temperatures, legend and place == last, one)
    return axes


def _path(omega: Omega, theta: Tensor, temperatures: Tensor, legend: bool, ax: Axes) -> Axes:
    with torch.no_grad():
        # The temperature divides all scores, those of transitions too.
        colder = 1 / temperatures.to(theta).unsqueeze(-1)
        weights = omega.scale_factors(colder)(theta * colder).cpu().numpy()
    for number, score in enumerate(theta.tolist()):
        style = _STYLES[number // 7 % len(_STYLES)] if theta.numel() > 7 else _STYLES[number % 5]
        ax.plot(
            temperatures.cpu().numpy(), weights[:, number], color=color_of(number), linestyle=style,
            linewidth=1.8, label=f"$\\theta_{{{number + 1}}} = {score:.4g}$",
        )  # fmt: skip
    ax.set_xlim(0.0, float(temperatures.max()))
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel(r"temperature $\beta^{-1}$")
    ax.set_title(omega.name, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return ax


def _checked_theta(theta: object) -> Tensor:
    if not isinstance(theta, Tensor) or theta.ndim != 1 or not theta.is_floating_point():
        came = tuple(theta.shape) if isinstance(theta, Tensor) else type(theta).__name__
        raise ValueError(f"expected theta to be a floating tensor of shape (N,), got {came}.")
    return theta.detach()
