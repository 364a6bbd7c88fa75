"""The command line, ``arendezvous``: it needs the extra ``cli`` and says so."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ("main",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 2 for a mistake in its arguments, else as ``--help`` tells.

    Args:
        argv: The arguments; those of this process by default.
    """
    try:
        from .app import run_command
    except ModuleNotFoundError as exc:
        if exc.name != "click":
            raise
        print(  # noqa: T201  a command line talks
            "arendezvous: the command line needs the package click; install it with: pip install 'arendezvous[cli]'",
            file=sys.stderr,
        )
        return 2
    return run_command(sys.argv[1:] if argv is None else list(argv))
