"""``python -m hopfy``: the same as the command ``hopfy``."""

from hopfy.cli import main

if __name__ == "__main__":
    main()
