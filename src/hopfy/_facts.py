"""What omegas and structures can say about themselves.

Both inherit from `Described`, so that files, names, device moves and "does any parameter require
grad?" have one answer each.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Described",
    "IndexTarget",
    "Reach",
    "identity_of",
    "named",
    "register_parameters",
    "resolve_names_with",
    "with_parameters_of",
]

_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")


class Reach(NamedTuple):
    """Only scores above the ``rank``-th best one minus ``distance`` can get weight."""

    rank: int
    distance: float


class IndexTarget(NamedTuple):
    """A target given by indices, as weights.

    Attributes:
        weights: shaped like the scores, zero where nothing is present.
        present: boolean, broadcasts to the scores; False removes an entry. None: all are present.
    """

    weights: Tensor
    present: Tensor | None


class Described:
    """An immutable object whose attributes are numbers, strings, tensors and `Described` objects.

    Objects of one class are equal if all their attributes are, tensors in their shape, dtype and
    entries.

    A class that sets ``family`` (a string, unique within its kind) can be described by `spec` and
    made again by `from_spec`, which calls the class with the attributes as keywords.
    """

    family: ClassVar[str | None] = None
    _families: ClassVar[dict[str, type[Described]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Described in cls.__bases__:
            cls._families = {}
        if cls.__dict__.get("family") is not None:
            cls._families[str(cls.family)] = cls

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or _are_equal(self._parameters(), other._parameters())

    def __hash__(self) -> int:
        return hash((type(self), _hashable(self._parameters())))

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self)

    def spec(self) -> dict[str, Any]:
        """A description that JSON can hold; `from_spec` makes an equal object from it."""
        if self.family is None or type(self).__dict__.get("family") is None:
            raise TypeError(
                f"expected an object that a file can describe, got {self!r}; give the class "
                f"{type(self).__name__} a `family` and parameters that are numbers or tensors."
            )
        return {"family": self.family} | {
            key: _encoded(value, f"{type(self).__name__}.{key}")
            for key, value in self._parameters()
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """The object that `spec` described; a ValueError if it is no such description."""
        if not isinstance(spec, Mapping) or not isinstance(spec.get("family"), str):
            raise ValueError(f"expected a description with a 'family', got {spec!r}.")
        maker = cls._families.get(spec["family"])
        if maker is None:
            known = ", ".join(sorted(cls._families))
            raise ValueError(f"expected a family among {known}, got {spec['family']!r}.")
        parameters = {
            key: maker._decoded(key, value) for key, value in spec.items() if key != "family"
        }
        try:
            made = maker(**parameters)
        except TypeError as error:
            raise ValueError(f"expected the parameters of {maker.__name__}, got {error}") from None
        return made  # type: ignore[return-value]

    @classmethod
    def _decoded(cls, key: str, value: Any) -> Any:  # noqa: ARG003
        """A parameter as `_encoded` wrote it; ``cls`` may look at the key."""
        return _decoded(value)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor among the parameters, those of nested objects included, by name."""
        return dict(_tensors(self._parameters()))

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """A copy with ``function`` applied to each tensor, such as ``lambda t: t.to(device)``."""
        made = copy.copy(self)
        for key, value in self._parameters():
            object.__setattr__(made, key, _mapped(value, function))
        return made

    @property
    def requires_grad(self) -> bool:
        """Whether any of the tensors requires grad."""
        return any(tensor.requires_grad for tensor in self.tensors().values())

    @property
    def varies_by_row(self) -> bool:
        """Whether a parameter (alpha, k) is a tensor that may differ from row to row."""
        return any(tensor.ndim > 0 for tensor in self.tensors().values())

    def _parameters(self) -> list[tuple[str, Any]]:
        def is_parameter(key: str) -> bool:
            derived = isinstance(getattr(type(self), key, None), cached_property)
            return not key.startswith("_") and not derived

        return [(key, value) for key, value in vars(self).items() if is_parameter(key)]


def register_parameters(module: nn.Module, prefix: str, described: Described) -> None:
    """Make every `nn.Parameter` of an omega or a state a parameter of the module that uses it."""
    for name, tensor in described.tensors().items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(_registered_name(prefix, name), tensor)


def with_parameters_of(module: nn.Module, prefix: str, described: Any) -> Any:
    """The object with the parameters that its module has now, after `register_parameters`.

    `torch.func.functional_call`, ``to_empty`` and ``load_state_dict(assign=True)`` replace them.
    """
    own = [
        (tensor, getattr(module, _registered_name(prefix, name)))
        for name, tensor in described.tensors().items()
        if isinstance(tensor, nn.Parameter)
    ]
    if all(old is new for old, new in own):
        return described
    return described.map_tensors(
        lambda tensor: next((new for old, new in own if old is tensor), tensor)
    )


def _registered_name(prefix: str, name: str) -> str:
    return f"{prefix}_{name}".replace(".", "_")


def _are_equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
            return False
        alike = first.dtype == second.dtype and first.device == second.device
        return alike and torch.equal(first.detach(), second.detach())
    if isinstance(first, tuple | list) and type(first) is type(second):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    return bool(first == second)


def _hashable(value: Any) -> Any:
    """Equal for equal values; the entries of a tensor do not count, as they may be trained."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else type(value)


def identity_of(value: Any) -> str:
    """A text that is equal for equal objects, in all processes, and tells others apart.

    Tensors are left out: they may be large, and a caller may want to compare their bytes.

    >>> class Plain(Described):
    ...     def __init__(self, k): self.k = k
    >>> identity_of(Plain(2)) == identity_of(Plain(2)), identity_of(Plain(2)) == identity_of(Plain(3))
    (True, False)
    """
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, tuple | list):
        return f"[{', '.join(identity_of(each) for each in value)}]"
    if not isinstance(value, Described):
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    told = [f"{key}={identity_of(each)}" for key, each in sorted(value._parameters())]
    return f"{kind}({', '.join(told)})"


def _tensors(parameters: list[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    for key, value in parameters:
        if isinstance(value, Tensor):
            yield key, value
        elif isinstance(value, Described):
            yield from ((f"{key}.{inner}", each) for inner, each in value.tensors().items())
        elif isinstance(value, tuple | list):
            yield from _tensors([(f"{key}.{place}", each) for place, each in enumerate(value)])


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Described):
        return value.map_tensors(function)
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, function) for each in value)
    return value


def _encoded(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else {"number": repr(float(value))}
    if isinstance(value, Tensor) and not value.is_complex():
        flat = value.detach().cpu().flatten().tolist()
        entries = [_encoded(entry, where) for entry in flat]
        return {"tensor": entries, "shape": list(value.shape), "dtype": str(value.dtype)[6:]}
    if isinstance(value, Described):
        return value.spec()
    if isinstance(value, tuple | list):
        return [_encoded(each, where) for each in value]
    raise TypeError(
        f"expected parameters that a file can describe (numbers, strings, tensors), got {value!r} "
        f"in {where}."
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(each) for each in value)
    if not isinstance(value, Mapping):
        return value
    if "number" in value:
        return float(value["number"])
    if "tensor" in value:
        if value.get("dtype") not in _DTYPES:
            raise ValueError(f"expected a dtype among {_DTYPES}, got {value.get('dtype')!r}.")
        entries = [_decoded(entry) for entry in value["tensor"]]
        dtype: torch.dtype = getattr(torch, value["dtype"])
        return torch.tensor(entries, dtype=dtype, device="cpu").reshape(value["shape"])
    raise ValueError(f"expected a number, a string or a tensor, got {value!r}.")


# --- names ----------------------------------------------------------------------------------------

_resolvers: list[Callable[[Any], Any]] = []


def resolve_names_with(resolver: Callable[[Any], Any]) -> None:
    """Say how a name such as "sparsemax" becomes an omega; the package of omegas does."""
    _resolvers[:] = [resolver]


def named(name: Any) -> Any:
    """The omega with this name, for functions below the package of omegas."""
    return _resolvers[0](name)
