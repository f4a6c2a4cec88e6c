"""Moved to `hopfy.paper.report`."""

raise ImportError("hopfy.report is hopfy.paper.report now.")
