"""Module twins of the maps, for `torch.nn.Sequential`."""

from __future__ import annotations

from torch import Tensor, nn

from hopfy import functional as F
from hopfy._checks import ENTMAX_ALPHA, NORMMAX_ALPHA, SUBSET_SIZE, Rule, check_parameter

__all__ = ["Entmax", "KSubsetsMap", "Normmax", "Softmax", "Sparsemax"]


class _Map(nn.Module):
    """A map along ``dim``; called with scores and, if some must not be selected, a mask."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class _ParametrizedMap(_Map):
    """A map with one number or tensor beside the rows; an `nn.Parameter` is trained."""

    def __init__(self, rule: Rule, value: float | Tensor, dim: int) -> None:
        super().__init__(dim)
        check_parameter(value, rule)
        self._name = rule.name
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(rule.name, value)
        else:
            setattr(self, rule.name, value)

    def extra_repr(self) -> str:
        value = getattr(self, self._name)
        shown = f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else value
        return f"{self._name}={shown}, dim={self.dim}"


class Softmax(_Map):
    """`hopfy.functional.softmax` as a module.

    >>> import torch, hopfy
    >>> hopfy.nn.Softmax()(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.softmax(scores, dim=self.dim, mask=mask)


class Sparsemax(_Map):
    """`hopfy.functional.sparsemax` as a module.

    >>> import torch, hopfy
    >>> hopfy.nn.Sparsemax()(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.sparsemax(scores, dim=self.dim, mask=mask)


class Entmax(_ParametrizedMap):
    """`hopfy.functional.entmax` as a module; an `nn.Parameter` as alpha is trained.

    >>> import torch, hopfy
    >>> torch.nn.Sequential(torch.nn.Linear(8, 3), hopfy.nn.Entmax(1.5))
    Sequential(
      (0): Linear(in_features=8, out_features=3, bias=True)
      (1): Entmax(alpha=1.5, dim=-1)
    )
    """

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1) -> None:
        super().__init__(ENTMAX_ALPHA, alpha, dim)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.entmax(scores, self.alpha, dim=self.dim, mask=mask)


class Normmax(_ParametrizedMap):
    """`hopfy.functional.normmax` as a module; an `nn.Parameter` as alpha is trained.

    >>> import torch, hopfy
    >>> hopfy.nn.Normmax(5)(torch.tensor([1.0, 0.9, -3.0]))
    tensor([0.5109, 0.4891, 0.0000])
    """

    alpha: float | Tensor

    def __init__(self, alpha: float | Tensor = 2.0, dim: int = -1) -> None:
        super().__init__(NORMMAX_ALPHA, alpha, dim)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.normmax(scores, self.alpha, dim=self.dim, mask=mask)


class KSubsetsMap(_ParametrizedMap):
    """`hopfy.functional.ksubsets` as a module.

    >>> import torch, hopfy
    >>> hopfy.nn.KSubsetsMap(2)(torch.tensor([3.0, 1.0, 0.5, -1.0]))
    tensor([1.0000, 0.7500, 0.2500, 0.0000])
    """

    k: float | Tensor

    def __init__(self, k: float | Tensor, dim: int = -1) -> None:
        super().__init__(SUBSET_SIZE, k, dim)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.ksubsets(scores, self.k, dim=self.dim, mask=mask)
