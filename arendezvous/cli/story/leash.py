"""A command on a leash: it ends when whoever started it does, however that came about.

Run as ``python -m arendezvous.cli.story.leash FD COMMAND ...``. ``FD`` is the reading end of a pipe whose other end the
parent has alone. The process says that it is ready, waits for one byte, which is the sign to begin, and is
``arendezvous COMMAND`` from then on. End of file is what the end of the parent looks like, SIGKILL included; it means
SIGTERM to this process, a grace and SIGKILL. The workers of an agent end with the agent, see
``arendezvous/supervisor.py``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module

__all__ = ("READY", "main")

#: The line that says that all is loaded.
READY = "ready to begin"
#: Seconds between SIGTERM and SIGKILL.
_GRACE = 3.0
#: What commands load late. Here it is loaded before the sign to begin, so that those who begin together do.
_HEAVY = {"run": "...agent", "serve": "...store.server"}


def main(argv: list[str]) -> int:
    """Wait for the sign, then run the command; its exit status."""
    fd, command = int(argv[0]), argv[1:]
    os.set_inheritable(fd, False)  # for this process alone, not for workers
    from .. import main as run_command
    from ..app import run_in_loop

    import_module(_HEAVY[command[0]], __package__)
    run_in_loop(_nothing, command[command.index("--event-loop") + 1])
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    if not os.read(fd, 1):
        return 0
    threading.Thread(target=_hold, args=(fd,), daemon=True).start()
    return run_command(command)


async def _nothing() -> None:
    """An event loop is loaded by running it."""


def _hold(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
