"""The command line: ``hopfy explore``, ``demo``, ``reproduce``, ``data``, ``bench`` and ``warm-up``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its libraries, say how to get them."""
    try:
        from hopfy._commands import app
    except ImportError as missing:
        sys.exit(f"hopfy's command line needs {missing.name}: pip install 'hopfy[cli]'.")
    app(prog_name="hopfy")


if __name__ == "__main__":
    main()
