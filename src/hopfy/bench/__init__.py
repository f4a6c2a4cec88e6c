"""Benchmarks: every result is checked before it is timed, every speed is a ratio from one run."""

from hopfy.bench._maps import bench_maps

__all__ = ["bench_maps"]
