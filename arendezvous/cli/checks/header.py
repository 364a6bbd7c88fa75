"""What a report says of the program and the machine; nothing that is secret."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib import metadata

from ... import __version__

__all__ = ("gather",)


def gather(loop: str, arguments: dict[str, str]) -> dict[str, str]:
    """The head of a report.

    Args:
        loop: The event loop that runs.
        arguments: What the user asked for, for the reader of the report.
    """
    library = {"asyncio": "", "uvloop": "uvloop", "trio": "trio"}[loop]
    return {
        "arendezvous": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "anyio": metadata.version("anyio"),
        "event loop": f"{loop} {metadata.version(library)}" if library else loop,
        "platform": platform.platform(),
        "host": platform.node(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        **arguments,
    }
