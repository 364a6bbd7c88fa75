"""``python -m arendezvous``: the command line."""

from __future__ import annotations

import sys

from .cli import main

__all__ = ()

if __name__ == "__main__":
    sys.exit(main())
