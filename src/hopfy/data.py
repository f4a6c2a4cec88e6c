"""Moved to `hopfy.paper.data`."""

raise ImportError("hopfy.data is hopfy.paper.data now.")
