"""Threads, compilation and backends: what the kernels ask about the machine."""
