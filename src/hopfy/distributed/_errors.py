"""What can go wrong between processes."""

from __future__ import annotations

__all__ = ["DisagreementError", "DistributedError", "LostProcessError", "RemoteError"]


class DistributedError(RuntimeError):
    """A call that all processes make together failed; every process gets an error."""


class RemoteError(DistributedError):
    """Another process failed; its own error is in the message."""


class DisagreementError(DistributedError, ValueError):
    """The processes were called with different inputs where they must be equal."""


class LostProcessError(DistributedError):
    """A process died, left, or did not answer in time. The group cannot be used any more."""
