"""Locks of a file store: the one on its log, and the lock files of its leases.

``flock`` belongs to the open file, not to the process, so that several stores of one process exclude each other as
those of several processes do, and the kernel frees it when the last process that has the file open is gone. Nobody
waits for a lock in a thread: who does not get it at once raises :class:`Busy`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from ..errors import RendezvousConnectionError

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ("Busy", "Held", "LeaseLocks", "check_locks", "refuse", "try_lock")

_NO_LOCKS: Final = {errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Busy(Exception):
    """Another process holds the lock; try again soon."""


def refuse(path: str, exc: OSError) -> NoReturn:
    """Raise the error for a file that cannot be used.

    Raises:
        RendezvousConnectionError: always.
    """
    raise RendezvousConnectionError(f"the file store {path} cannot be used: {exc.strerror or exc}") from exc


def try_lock(path: str, fd: int, kind: int) -> None:
    """Lock an open file of the store at ``path``, now or not at all.

    Args:
        path: For messages.
        fd: The open file.
        kind: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.

    Raises:
        Busy: another process holds the lock.
        RendezvousConnectionError: there are no locks on this path.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy from None
    except OSError as exc:
        if exc.errno in _NO_LOCKS:
            raise RendezvousConnectionError(
                f"the path of the file store {path} does not support locks ({exc.strerror}); without them writes would "
                "be lost: use a local disk, NFS with locking, or a TCP store"
            ) from exc
        refuse(path, exc)


def check_locks(path: str) -> None:
    """Find out whether there are locks on ``path``, a file or directory, by one that excludes nobody for long.

    Raises:
        RendezvousConnectionError: there are none, or ``path`` cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        refuse(path, exc)
    try:
        # Somebody else has it: then they work.
        with suppress(Busy):
            try_lock(path, fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


class Held:
    """A lease of this process.

    Attributes:
        name: What it is called in the log; None before its first key.
        fd: The open, locked file; -1 if none.
        ended: Its block is over.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.fd = -1
        self.ended = False


class LeaseLocks:
    """The lock files of leases: a lease lives no longer than somebody holds the lock on the file of its name.

    Files are made and swept only by holders of the log's exclusive lock, so that nobody takes a file which is not
    locked yet for one of the dead.

    Args:
        path: The store's path, for messages.
        directory: Where the lock files are; exists while there are any.
    """

    def __init__(self, path: str, directory: str) -> None:
        self._path = path
        self._directory = directory
        self._held: dict[str, Held] = {}

    def create(self, held: Held) -> None:
        """Make and lock a file for a lease of this process, and give the lease its name.

        Raises:
            RendezvousConnectionError: that is not possible.
        """
        name = os.urandom(8).hex()
        try:
            fd = self._create_file(os.path.join(self._directory, name))
        except OSError as exc:
            refuse(self._path, exc)
        try:
            try_lock(self._path, fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(fd)
            self.unlink(name)
            raise
        held.name, held.fd = name, fd
        self._held[name] = held

    def owned(self, name: str) -> bool:
        """Whether somebody, this process or another, holds the lock of a lease."""
        if name in self._held:
            return True
        try:
            fd = os.open(os.path.join(self._directory, name), os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # Out of file descriptors, say: that is nobody's death.
            return True
        try:
            # Shared, so that two who look at the same time do not take each other for the owner.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def drop(self, held: Held) -> None:
        """Let go of the lock of a lease of this process and remove its file."""
        if held.fd >= 0:
            fd, held.fd = held.fd, -1
            os.close(fd)
        if held.name is not None:
            self._held.pop(held.name, None)
            self.unlink(held.name)
            held.name = None

    def drop_ended(self) -> None:
        """:meth:`drop` every lease whose block is over."""
        for held in [held for held in self._held.values() if held.ended and held.fd >= 0]:
            self.drop(held)

    def drop_all(self) -> None:
        """:meth:`drop` every lease."""
        for held in list(self._held.values()):
            self.drop(held)

    def forget(self) -> None:
        """In the child of a fork: close the parent's files without touching them, for the locks go with them."""
        for held in self._held.values():
            os.close(held.fd)
            held.fd, held.name = -1, None
        self._held.clear()

    def unlink(self, name: str) -> None:
        """Remove the file of a lease that is over; nothing happens if it is gone."""
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, name))
            # Succeeds for the last file only.
            os.rmdir(self._directory)

    def sweep(self, known: Container[str]) -> None:
        """Remove the files of owners that died before their lease was in the log."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                if name not in known and not self.owned(name):
                    self.unlink(name)

    def _create_file(self, path: str) -> int:
        for _ in range(8):
            with suppress(FileExistsError):
                os.mkdir(self._directory, 0o777)
            # Another process may remove the directory in between, because it was empty.
            with suppress(FileNotFoundError):
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
