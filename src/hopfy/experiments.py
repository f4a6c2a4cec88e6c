"""Moved to `hopfy.paper`."""

raise ImportError("hopfy.experiments is hopfy.paper now.")
