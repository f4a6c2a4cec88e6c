"""The digits that scikit-learn brings along: no file, no network."""

from __future__ import annotations

import torch

from hopfy.paper.data._images import Images

__all__ = ["digits"]


def digits() -> Images:
    """1,797 handwritten digits of 8 x 8 pixels in 0 .. 16 (uint8), bundled with scikit-learn.

    >>> digits().images.shape
    torch.Size([1797, 8, 8])
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(
            "the bundled digits need scikit-learn: pip install 'hopfy[sklearn]'."
        ) from None
    bundled = load_digits()
    images = torch.from_numpy(bundled.images).to(torch.uint8)
    return Images(images, torch.from_numpy(bundled.target).to(torch.int64))
