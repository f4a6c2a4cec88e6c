"""Bags of digits that are positive if they hold K or more of one digit."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from hopfy.paper.data._labeled_bags import LabeledBags

__all__ = ["digit_bags"]


def digit_bags(
    labels: Tensor,
    least: int,
    *,
    bags: int,
    length: tuple[float, float],
    digit: int = 9,
    seed: int | tuple[int, ...] = 0,
) -> LabeledBags:
    r"""Bags for :math:`K`-MIL: a bag is positive if it holds at least :math:`K` of one digit.

    They come in pairs of one length, a positive and a negative one, so that the length tells
    nothing. The length is :math:`\max(K, \lfloor N(\mu, \sigma^2) \rfloor)`; how many are that
    digit is uniform in :math:`[K, \text{length}]` or in :math:`[0, K - 1]` (App. G.1). No image
    comes twice in a bag.

    Args:
        labels: the digits that the images show, (images,).
        least: K.
        bags: how many, an even number.
        length: the mean and the deviation of a bag's length.
        digit: the one that counts.
        seed: of everything random.

    Returns:
        Bags whose instances are places in ``labels``.

    >>> labels = torch.arange(100) % 10
    >>> made = digit_bags(labels, 2, bags=4, length=(6, 1))
    >>> [int((labels[bag] == 9).sum()) >= 2 for bag in made.separate()], made.labels.tolist()
    ([True, False, True, False], [1, 0, 1, 0])
    """
    if least < 1 or bags < 2 or bags % 2:
        raise ValueError(
            f"expected K of at least 1 and an even number of bags, got {least} and {bags}."
        )
    generator = numpy.random.default_rng(seed)
    shown = labels.numpy() == digit
    wanted, others = numpy.flatnonzero(shown), numpy.flatnonzero(~shown)
    places: list[numpy.ndarray] = []
    for _ in range(bags // 2):
        size = max(least, int(generator.normal(*length)))
        if size > min(wanted.size, others.size):
            raise ValueError(
                f"expected at least {size} images of digit {digit} and as many of others, got "
                f"{wanted.size} and {others.size}; choose shorter bags."
            )
        for low, high in ((least, size), (0, least - 1)):
            own = int(generator.integers(low, high + 1))
            bag = numpy.concatenate(
                [
                    generator.choice(wanted, own, replace=False),
                    generator.choice(others, size - own, replace=False),
                ]
            )
            places.append(generator.permutation(bag))
    return LabeledBags(
        torch.from_numpy(numpy.concatenate(places)),
        torch.tensor([place.size for place in places]),
        torch.tensor([1, 0] * (bags // 2)),
    )
