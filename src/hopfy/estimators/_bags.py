"""Bags of different sizes: one flat tensor of instances, and where each bag lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

__all__ = ["Bags", "pack"]


class Bags(Sequence[Any]):
    """Bags that lie behind each other in one tensor: a sequence, which can be split and searched over.

    An instance is embedded once however bags are batched, and padding exists only as an index.

    Args:
        instances: (I, ...), all instances of the first bag, then of the second, and so on.
        lengths: (B,) how many instances each bag has, none of them zero.
        order: (I,) where each instance was in the array that it came from, if it moved.

    >>> import torch
    >>> bags = Bags(torch.arange(6.0).reshape(3, 2), torch.tensor([1, 2]))
    >>> bags
    Bags(2 bags of 1 to 2 instances of shape (2,))
    >>> bags[1]
    tensor([[2., 3.],
            [4., 5.]])
    >>> {name: tuple(each.shape) for name, each in bags.batch([0, 1]).items()}
    {'instances': (3, 2), 'places': (2, 2), 'mask': (2, 2)}
    """

    def __init__(
        self, instances: Tensor, lengths: Tensor, order: np.ndarray[Any, Any] | None = None
    ) -> None:
        empty = (lengths < 1).nonzero()
        if empty.numel():
            raise ValueError(
                f"expected at least one instance in bag {int(empty[0])}, got an empty bag; drop it."
            )
        if int(lengths.sum()) != len(instances):
            raise ValueError(
                f"expected lengths that sum to the {len(instances)} instances, got "
                f"{int(lengths.sum())}."
            )
        self.instances, self.lengths, self.order = instances, lengths, order
        self.offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))

    def __repr__(self) -> str:
        shape = tuple(self.instances.shape[1:])
        sizes = f"{int(self.lengths.min())} to {int(self.lengths.max())}" if len(self) else "no"
        return f"Bags({len(self)} bags of {sizes} instances of shape {shape})"

    @classmethod
    def from_ids(cls, instances: Any, bag_ids: Any) -> Bags:
        """Bags of the instances (I, ...) that have the same id, in the order of first appearance.

        >>> [bag.flatten().tolist() for bag in Bags.from_ids([[1.0], [2.0], [3.0]], ["a", "b", "a"])]
        [[1.0, 3.0], [2.0]]
        """
        array = _as_instances(instances, "the array of instances")
        ids = np.asarray(bag_ids)
        if ids.shape != (len(array),):
            raise ValueError(
                f"expected one bag id for each of {len(array)} instances, got shape {ids.shape}."
            )
        _, first, number = np.unique(ids, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[number]
        order = np.argsort(rank, kind="stable")
        return cls(torch.from_numpy(array[order]), torch.from_numpy(np.bincount(rank)), order)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: Any) -> Any:
        number = range(len(self))[number]
        if isinstance(number, range):
            return [self[each] for each in number]
        return self.instances[self.offsets[number] : self.offsets[number + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(self.instances, self.lengths.tolist()))

    def batch(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """The instances of some bags and, bag by bag, their places among these.

        Returns:
            ``instances`` (I', ...); ``places`` (B', L), an index into them; ``mask`` (B', L), False
            where a bag has no more instances (the place there is 0 and means nothing).
        """
        chosen = torch.as_tensor(numbers, dtype=torch.int64)
        lengths, starts = self.lengths[chosen], self.offsets[chosen]
        slots = torch.arange(int(lengths.max()))
        mask = slots < lengths.unsqueeze(1)
        before = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))[:-1]
        places = torch.where(mask, before.unsqueeze(1) + slots, 0)
        sources = (starts.unsqueeze(1) + slots)[mask]
        return {"instances": self.instances[sources], "places": places, "mask": mask}


def pack(bags: Any, bag_ids: Any = None) -> Bags:
    """Check bags and put them behind each other, in float32.

    Args:
        bags: a sequence of arrays (n, ...), one bag each, that differ in n only. A single vector
            counts as a bag of one instance, so a plain table (B, D) is B such bags. With
            ``bag_ids``, one array (I, ...) of all instances.
        bag_ids: (I,) which bag each instance belongs to; bags come in the order in which their ids
            appear first, instances in their given order.

    >>> pack([[[1.0], [2.0]], [[3.0]]]).lengths
    tensor([2, 1])
    >>> pack([[1.0], [2.0], [3.0]], bag_ids=["a", "b", "a"]).instances.flatten()
    tensor([1., 3., 2.])
    """
    if bag_ids is not None:
        return Bags.from_ids(bags, bag_ids)
    if isinstance(bags, Bags):
        instances = torch.from_numpy(_as_instances(bags.instances, "the bags"))
        return Bags(instances, bags.lengths, bags.order)
    if issparse(bags):
        raise TypeError(
            f"expected dense bags, got a sparse {type(bags).__name__}; convert with .toarray()."
        )
    if not isinstance(bags, Sequence | np.ndarray | Tensor) and not hasattr(bags, "__array__"):
        raise TypeError(
            f"expected bags as a list of arrays, got {type(bags).__name__}; "
            "or pass one array and bag_ids."
        )
    if not isinstance(bags, Sequence):
        bags = _table(bags)
    if len(bags) == 0:
        raise ValueError("expected at least one bag, got none (0 sample(s)).")
    arrays = [_as_instances(bag, f"bag {number}") for number, bag in enumerate(bags)]
    for number, array in enumerate(arrays):
        if array.shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"expected all instances to have the shape {arrays[0].shape[1:]} of those in bag "
                f"0, got {array.shape[1:]} in bag {number}."
            )
    lengths = torch.tensor([len(array) for array in arrays])
    return Bags(torch.from_numpy(np.concatenate(arrays)), lengths)


def _table(bags: Any) -> Any:
    array = bags if isinstance(bags, Tensor) else np.asarray(bags)
    if array.ndim < 2:
        raise ValueError(
            f"expected bags as a list of arrays, or an array (B, n, ...) of them, got an array of "
            f"shape {tuple(array.shape)}. Reshape your data to (1, -1) if it is one instance."
        )
    if 0 in array.shape[-1:]:
        raise ValueError(
            f"expected at least one feature, got 0 feature(s) (shape={tuple(array.shape)}) while a "
            "minimum of 1 is required."
        )
    return array


def _as_instances(bag: Any, name: str) -> np.ndarray[Any, Any]:
    """A bag (n, ...) of finite floating numbers with n >= 1."""
    if isinstance(bag, Tensor):
        bag = bag.detach().cpu().numpy()
    try:
        array = np.asarray(bag)
        if np.iscomplexobj(array):
            raise ValueError(f"expected real numbers in {name}; Complex data not supported.")
        with np.errstate(over="ignore"):  # what is too large becomes infinity, an error below
            array = array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        if "Complex" in str(error):
            raise
        raise type(error)(
            f"expected {name} to be an array of numbers, one instance per row, but {error}."
        ) from None
    if array.ndim == 0:
        raise ValueError(f"expected {name} of shape (n, ...), got a single number.")
    if array.ndim == 1 and len(array):
        array = array[None]
    if len(array) == 0:
        raise ValueError(f"expected at least one instance in {name}, got an empty bag; drop it.")
    if array[0].size == 0:
        raise ValueError(f"expected at least one feature in {name}, got shape {array.shape}.")
    finite = np.isfinite(array)
    if not finite.all():
        kind = "NaN" if np.isnan(array).any() else "infinity"
        row = int(np.argwhere(~finite)[0, 0])
        raise ValueError(
            f"expected finite features in {name}, got {kind} in its instance {row}; impute or drop it."
        )
    return array
