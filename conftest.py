"""What is not collected: kernels of backends that are not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["src/hopfy/_kernels/*/gpu*.py"]
