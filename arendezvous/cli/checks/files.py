"""The file of a file store: whether it can be used, and by whom. No file is made."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...errors import RendezvousConnectionError
from ...store.filelocks import check_locks
from .finding import Finding, fail, note, ok, warn

__all__ = ("examine", "file_system")

#: File systems that several hosts share, by the beginning of their names.
_SHARED = re.compile(r"nfs|cifs|smb|ceph|lustre|gpfs|beegfs|glusterfs|fuse|9p|virtiofs|afs|pvfs|orangefs")
_MOUNTS = "/proc/self/mountinfo"


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that a path is on, ``""`` if nobody knows.

    Args:
        path: An absolute path.
        mounts: The content of ``/proc/self/mountinfo``.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])
        # The last one of several mounts on the same place is the one that is seen.
        if path.is_relative_to(place) and len(place) >= best:
            best, kind = len(place), after.split()[0]
    return kind


def examine(path: Path) -> list[Finding]:
    """Look at the file at ``path``, or at where it will be."""
    path = Path(os.path.abspath(path))
    if path.is_dir():
        return [fail("file", f"{path} is a directory", "give the path of a file, which is made, as the endpoint")]
    directory = Path(os.path.realpath(path)).parent
    if not directory.is_dir():
        return [
            fail("file", f"the directory {directory} does not exist", "make it, or correct the path, on every node")
        ]
    findings = []
    if not os.access(directory, os.W_OK | os.X_OK):
        todo = "let the user of the agents write there: lock files are kept beside the store"
        findings.append(fail("file", f"the directory {directory} is not writable for this user", todo))
    if not path.exists():
        findings.append(
            note("file", f"{path} does not exist yet", "nothing: the first agent makes it; all must give the same path")
        )
    elif not os.access(path, os.R_OK | os.W_OK):
        findings.append(
            fail(
                "file",
                f"{path} cannot be read and written by this user",
                "change its owner or mode, or take another path",
            )
        )
    else:
        findings.append(ok("file", f"{path} has {path.stat().st_size} bytes and can be read and written"))
    findings.append(_judge_system(directory))
    findings.append(_judge_locks(path if path.exists() else directory))
    return findings


def _judge_system(directory: Path) -> Finding:
    try:
        kind = file_system(directory, Path(_MOUNTS).read_text("utf-8", "surrogateescape"))
    except OSError:
        kind = ""
    if not kind:
        return note("file system", "its type is not known here", "see that all nodes share it, and that it has locks")
    if _SHARED.match(kind):
        return warn(
            "file system",
            f"{directory} is on {kind}, which hosts share: the store depends on its locks, and a death is noticed late",
            "mount NFS with locking (not nolock, not local_lock), or use a TCP store: `arendezvous serve`",
        )
    return ok("file system", f"{directory} is on {kind}, so the nodes of this machine (or container) can meet here")


def _judge_locks(path: Path) -> Finding:
    try:
        check_locks(str(path))
    except RendezvousConnectionError as exc:
        return fail("locks", str(exc), "use a path on a local disk, NFS with locking, or a TCP store")
    return ok("locks", f"locks on {path} work")
