"""A wall clock that is wrong, or jumps, for one process; its monotonic clocks and sleeps stay right.

``skewed(20.0)`` is an environment for ``subprocess``; with ``file=`` the offset is read from that file while the
process runs, so that a test can make its clock jump by writing the file again. For any command::

    python -m tests.faults.clock_skew +20 [--file F] -- CMD ...

It works by a preloaded library, ``wallskew.c``, which is compiled with ``cc`` when it is first needed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("library", "skewed")

_SOURCE = Path(__file__).with_name("wallskew.c")


def library() -> Path:
    """Return the compiled library."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"arendezvous-wallskew-{os.getuid()}-{digest}.so"
    if not place.exists():
        # Renamed when it is whole: two test processes may compile it at the same time.
        with tempfile.TemporaryDirectory(dir=place.parent) as directory:
            draft = Path(directory) / "wallskew.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", draft, _SOURCE, "-ldl"], check=True)
            draft.rename(place)
    return place


def skewed(
    offset: float = 0.0, *, file: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return an environment in which the wall clock is ``offset`` seconds ahead (behind, if negative).

    Args:
        offset: Seconds.
        file: Holds the seconds instead, and is read again every 50 ms.
        env: The environment to start from; this process's unless given.
    """
    changed = dict(os.environ if env is None else env)
    changed["LD_PRELOAD"] = " ".join(filter(None, [str(library()), changed.get("LD_PRELOAD")]))
    changed["WALLSKEW"] = str(offset)
    changed.pop("WALLSKEW_FILE", None)
    if file is not None:
        changed["WALLSKEW_FILE"] = os.fspath(file)
    return changed


def main() -> None:
    """Become the command, with a wrong clock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("offset", type=float)
    parser.add_argument("--file")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    os.execvpe(args.command[0], args.command, skewed(args.offset, file=args.file))


if __name__ == "__main__":
    main()
