"""Recall experiments of the unified framework: capacity, robustness, free and sequential recall."""
