"""What goes over the wire, and from which device."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

__all__ = ["Traffic", "transport_device"]


@dataclass
class Traffic:
    """What one process has exchanged so far.

    Attributes:
        exchanges: collectives that this process took part in.
        headers: bytes of headers that it sent (a fixed number for each exchange, with room for a
            small message).
        sent: bytes of payload that it put into collectives, padding included.
        received: bytes of payload that it got from the others, padding included.
        useful: bytes of ``sent`` that are not padding.
    """

    exchanges: int = 0
    headers: int = 0
    sent: int = 0
    received: int = 0
    useful: int = 0

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Traffic)))

    def copy(self) -> Traffic:
        """The numbers of this moment."""
        return self - Traffic()


def transport_device(backend: str, device: torch.device) -> torch.device:
    """Where the buffers of collectives live: on the CPU, unless the backend has only NCCL.

    Messages are a few candidates per query, and headers are read at once, so the CPU is the better
    place. NCCL alone moves memory of GPUs only: of the payload's GPU, or of the current one.

    >>> cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    >>> transport_device("cpu:gloo,cuda:nccl", gpu), transport_device("nccl", gpu)
    (device(type='cpu'), device(type='cuda', index=1))
    >>> transport_device("nccl", cpu), transport_device("gloo", cpu)
    (device(type='cuda'), device(type='cpu'))
    """
    if "nccl" not in backend or "cpu:" in backend:
        return torch.device("cpu")
    return device if device.type == "cuda" else torch.device("cuda")
