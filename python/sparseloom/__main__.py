"""Runs the command line for ``python -m sparseloom``."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
