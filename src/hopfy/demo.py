"""Moved to `hopfy.paper.demo`."""

raise ImportError("hopfy.demo is hopfy.paper.demo now.")
