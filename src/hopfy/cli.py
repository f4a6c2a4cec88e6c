"""The command line: ``hopfy reproduce``, ``hopfy data`` and ``hopfy bench``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its libraries, say how to get them."""
    try:
        from hopfy._commands import app
    except ImportError as missing:
        sys.exit(f"hopfy's command line needs {missing.name}: pip install 'hopfy[cli]'.")
    app()


if __name__ == "__main__":
    main()
