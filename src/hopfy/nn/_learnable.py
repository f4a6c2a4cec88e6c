"""Parameters of the association that are trained, each kept inside its range."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hopfy._checks import check_count
from hopfy.omega import Norm, Tsallis

__all__ = ["LearnableAlpha", "LearnableBeta"]


class LearnableAlpha(nn.Module):
    r"""An `omega` whose alpha is trained, one for every head.

    :math:`\alpha = l + (u - l)\,\mathrm{sigmoid}(a)` stays between the bounds whatever the
    optimizer does; its gradient is exact, also where the weights are dense.

    Args:
        heads: how many alphas; 1 is shared by all heads.
        init: where training starts, strictly between the bounds.
        bounds: the range; the default runs from softmax to sparsemax.
        family: `Tsallis` (entmax) or `Norm` (normmax, whose range must lie above 1).

    >>> import torch, hopfy
    >>> layer = hopfy.nn.Hopfield(16, heads=4, omega=hopfy.nn.LearnableAlpha(4))
    >>> layer.association.omega.alpha.shape
    torch.Size([4])
    """

    def __init__(
        self,
        heads: int = 1,
        init: float = 1.5,
        bounds: tuple[float, float] = (1.0, 2.0),
        family: type[Tsallis] | type[Norm] = Tsallis,
    ) -> None:
        super().__init__()
        check_count(heads, "heads")
        low, high = bounds
        family(low), family(high)  # a bound outside the family's range is refused there
        if not low < init < high < math.inf:
            raise ValueError(f"expected init strictly between the bounds {bounds}, got {init}.")
        self.low, self.high, self.family = low, high, family
        share = (init - low) / (high - low)
        self.raw = nn.Parameter(torch.full((heads,), math.log(share / (1 - share))))

    @property
    def alpha(self) -> Tensor:
        """One alpha per head, inside the bounds."""
        # A clamp against rounding at the far ends of the sigmoid.
        return (self.low + (self.high - self.low) * self.raw.sigmoid()).clamp(self.low, self.high)

    @property
    def closed_form(self) -> tuple[str, float | Tensor] | None:
        """See `hopfy.Omega.closed_form`: one alpha per head."""
        return self.omega.closed_form

    @property
    def omega(self) -> Tsallis | Norm:
        """The regularizer with today's alphas, one per head, beside rows (heads, queries)."""
        return self.family(self.alpha.unsqueeze(-1))

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights of scores (..., heads, queries, memories)."""
        return self.omega(scores, mask)

    def extra_repr(self) -> str:
        return f"heads={len(self.raw)}, {self.family.__name__}, bounds=({self.low}, {self.high})"


class LearnableBeta(nn.Module):
    r"""A positive inverse temperature :math:`\beta = e^b` that is trained, one for every head.

    >>> import torch, hopfy
    >>> layer = hopfy.nn.Hopfield(16, heads=4, beta=hopfy.nn.LearnableBeta(4, init=0.5))
    >>> layer.association.beta().detach()
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    def __init__(self, heads: int = 1, init: float = 1.0) -> None:
        super().__init__()
        check_count(heads, "heads")
        if not 0 < init < math.inf:
            raise ValueError(f"expected init to be positive and finite, got {init}.")
        self.log_beta = nn.Parameter(torch.full((heads,), math.log(init)))

    def forward(self) -> Tensor:
        """The betas, shape (heads,)."""
        return self.log_beta.exp()

    def extra_repr(self) -> str:
        return f"heads={len(self.log_beta)}"
