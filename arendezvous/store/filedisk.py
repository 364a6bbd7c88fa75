"""The blocking side of a file store: locks, reading and writing the log, compaction, lock files of leases.

Everything here is called in worker threads, one call at a time. No call waits for a lock: who does not get it at once
raises :class:`Busy`, so that a process which was stopped while it held the lock blocks no thread.

The lock is on the log itself. Its holder makes sure that the log still has the file's name; a compaction puts a new
file in its place, and the next holder of a lock on the old one notices.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar
from weakref import WeakSet

from ..errors import RendezvousConnectionError, RendezvousStateError, RendezvousUsageError
from .filelocks import Busy, Held, LeaseLocks, refuse, try_lock
from .filelog import (
    FORMAT,
    MAGIC,
    Beat,
    Damage,
    End,
    Record,
    Replica,
    decode_frame,
    encode_frame,
    encode_head,
)
from .hostclock import host_clock, host_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ("PROBE_INTERVAL", "Disk")

_T = TypeVar("_T")

#: How often a store looks, while it is used, whether the owners of the others' leases live. In seconds.
PROBE_INTERVAL: Final = 0.2
#: A log is compacted when it is larger than this many bytes, and than so many times its content.
COMPACT_MIN: Final = 65536
COMPACT_RATIO: Final = 4

_CHUNK: Final = 2**20


class _NeedsWriter(Exception):
    """A reader found something to be put right, which takes the exclusive lock."""


class Disk:
    """One store's file.

    Args:
        path: The file, as the user wrote it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.replica = Replica()
        # A link stays a link: compaction replaces what it points to.
        self._path = os.path.realpath(path)
        self._fd = -1
        self._identity = (0, 0)
        self._offset = 0
        self._existed = False
        self._open = True
        self._probed = -PROBE_INTERVAL
        self._compact_at = COMPACT_MIN
        self._locks = LeaseLocks(path, f"{self._path}.leases")
        self._news: deque[set[bytes] | None] = deque()
        # Calls exclude each other anyhow, but asyncio can be made to abandon a thread that is still at work.
        self._mutex = threading.Lock()
        _disks.add(self)

    # Calls

    def run(self, decide: Callable[[Replica], tuple[Sequence[Record], _T]], write: bool) -> _T:
        """Bring the replica up to date, ask ``decide`` what to add to the log, add it; all under the lock.

        Args:
            decide: Called with the replica; returns the records to add and the result.
            write: Whether there can be records: takes the exclusive instead of the shared lock.

        Raises:
            Busy: another process holds the lock.
            RendezvousConnectionError: the file is gone, cannot be used, or this store was closed.
            RendezvousStateError: the file is damaged or was not written by a file store.
        """
        with self._guard():
            if not write:
                try:
                    return self._locked(decide, exclusive=False)
                except _NeedsWriter:
                    pass
            return self._locked(decide, exclusive=True)

    def poll(self) -> None:
        """Bring the replica up to date if the file has changed or a lease is due; cheap if not.

        Raises:
            Busy: another process holds the lock.
            RendezvousConnectionError: as :meth:`run`.
            RendezvousStateError: as :meth:`run`.
        """
        with self._guard():
            # Opened and not just looked at by name: on a network file system only opening asks the server.
            fd = self._open_file()
            try:
                info = os.fstat(fd)
            finally:
                os.close(fd)
            same = self._identity == (info.st_dev, info.st_ino) and self._offset == info.st_size
            if same and not self._over(host_time()):
                return
            try:
                self._locked(_nothing, exclusive=False)
            except _NeedsWriter:
                self._locked(_nothing, exclusive=True)

    def beat(self, held: Held, ttl: float, key: bytes, value: bytes) -> None:
        """Write ``key`` under a lease of this process and refresh it.

        Raises:
            Busy: another process holds the lock.
            RendezvousConnectionError: as :meth:`run`.
            RendezvousStateError: as :meth:`run`.
        """

        def decide(replica: Replica) -> tuple[list[Record], None]:
            if held.name is None or held.name not in replica.leases:
                if held.ended:
                    raise RendezvousUsageError("this lease has ended; open a new one")
                self._locks.drop(held)
                self._locks.create(held)
            assert held.name is not None
            return [Beat(held.name, ttl, host_clock(), host_time(), key, value)], None

        self.run(decide, True)

    def end(self, held: Held) -> None:
        """End a lease of this process in the log.

        Raises:
            Busy: another process holds the lock.
            RendezvousConnectionError: as :meth:`run`.
            RendezvousStateError: as :meth:`run`.
        """

        def decide(replica: Replica) -> tuple[list[Record], None]:
            known = held.name is not None and held.name in replica.leases
            return ([End(held.name)] if known and held.name is not None else []), None

        self.run(decide, True)

    def release(self, held: Held) -> None:
        """Let go of the lock file of a lease; whatever else happens, its keys are then gone for everybody."""
        held.ended = True
        # Not for ever: this runs in the event loop, and who holds the mutex drops ended leases itself.
        if self._mutex.acquire(timeout=1):
            try:
                self._locks.drop(held)
                # The keys are gone for this store at its next look, too.
                self._probed = -PROBE_INTERVAL
            finally:
                self._mutex.release()

    def take_changes(self) -> Iterator[set[bytes] | None]:
        """Return the keys that the calls so far have seen change, of each call; None = any. For the event loop."""
        while self._news:
            yield self._news.popleft()

    def close(self) -> None:
        """Close every file; idempotent. A call at work in another thread does it when it ends."""
        self._open = False
        if self._mutex.acquire(blocking=False):
            try:
                self._release_all()
            finally:
                self._mutex.release()

    @property
    def closing(self) -> bool:
        """Whether a call is still at work."""
        return self._mutex.locked()

    # The lock

    @contextmanager
    def _guard(self) -> Iterator[None]:
        with self._mutex:
            if not self._open:
                raise RendezvousConnectionError(f"the file store {self.path} is closed")
            try:
                yield
            except OSError as exc:
                if exc.errno == errno.ESTALE:
                    # A network file system whose server has seen the file replaced: open the new one.
                    self._close_log()
                    raise Busy from exc
                refuse(self.path, exc)
            except Damage as exc:
                raise RendezvousStateError(
                    f"{self.path} is damaged or was not written by a file store: {exc}; delete it, or use another path"
                ) from exc
            finally:
                self._locks.drop_ended()
                self._news.append(self.replica.take_changes())
                if not self._open:
                    self._release_all()

    def _locked(self, decide: Callable[[Replica], tuple[Sequence[Record], _T]], *, exclusive: bool) -> _T:
        self._lock(exclusive)
        try:
            self._refresh(exclusive)
            over = self._over(host_time())
            if over and not exclusive:
                raise _NeedsWriter
            if over:
                self._append([End(name) for name in over])
                for name in over:
                    self._locks.unlink(name)
            records, result = decide(self.replica)
            if records:
                self._append(records)
                self._compact()
            return result
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self, exclusive: bool) -> None:
        for _ in range(8):
            if self._fd < 0:
                self._fd = self._open_file()
                info = os.fstat(self._fd)
                self._identity = (info.st_dev, info.st_ino)
                self._offset = 0
            try_lock(self.path, self._fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            try:
                info = os.stat(self._path)
            except FileNotFoundError:
                self._close_log()
                self._gone()
            except OSError as exc:
                self._close_log()
                refuse(self.path, exc)
            if (info.st_dev, info.st_ino) == self._identity:
                return
            # Compacted by another process, or put in the place of what was deleted; the head will tell.
            self._close_log()
        raise Busy

    def _open_file(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(self._path, flags if self._existed else flags | os.O_CREAT, 0o666)
        except FileNotFoundError as exc:
            if self._existed:
                self._gone()
            refuse(self.path, exc)
        except OSError as exc:
            refuse(self.path, exc)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RendezvousConnectionError(f"the file store {self.path} cannot be used: it is no regular file")
        self._existed = True
        return fd

    def _gone(self) -> NoReturn:
        raise RendezvousConnectionError(f"the file store {self.path} was deleted while it was in use")

    # The log

    def _refresh(self, exclusive: bool) -> None:
        if self._offset == 0:
            self._load_head(exclusive)
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            raise Damage(f"it was cut from {self._offset} to {size} bytes")
        wanted = _CHUNK
        while self._offset < size:
            data = memoryview(os.pread(self._fd, min(wanted, size - self._offset), self._offset))
            used, wanted = self._take(data)
            self._offset += used
            if not used and self._offset + len(data) >= size:
                # Cut short by the death of its writer, who never said that it was written.
                if not exclusive:
                    raise _NeedsWriter
                os.ftruncate(self._fd, self._offset)
                return

    def _take(self, data: memoryview) -> tuple[int, int]:
        """Apply the whole frames in ``data``; return their length and how much to read next."""
        used, now = 0, host_time()
        while True:
            records, length = decode_frame(data[used:])
            if records is None:
                return used, max(length, _CHUNK if used else 0)
            self.replica.apply(records, now)
            used += length

    def _load_head(self, exclusive: bool) -> None:
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, 4096, 0)
        if not MAGIC.startswith(data[: len(MAGIC)]) and any(data):
            raise Damage("it does not start as one")
        records, length = decode_frame(memoryview(data)[len(MAGIC) :]) if data.startswith(MAGIC) else (None, 0)
        if records is None and size > len(data):
            raise Damage("its head is too long")
        known = self.replica.birth
        replica = Replica(self.replica)
        if records is None:
            # New, or its first writer died over it; either way it holds nothing yet.
            if known is not None:
                self._gone()
            if not exclusive:
                raise _NeedsWriter
            os.ftruncate(self._fd, 0)
            head = encode_head(os.urandom(16), 0)
            self._write(head, 0)
            records, length = decode_frame(memoryview(head)[len(MAGIC) :])
            assert records is not None
        replica.apply(records, host_time())
        birth = replica.birth
        assert birth is not None
        if birth.format != FORMAT:
            raise RendezvousStateError(
                f"the file store {self.path} has format {birth.format}, this program writes format {FORMAT}"
            )
        if known is not None and known.store != birth.store:
            self._gone()
        self.replica = replica
        self._offset = len(MAGIC) + length

    def _append(self, records: Sequence[Record]) -> None:
        frame = encode_frame(records)
        try:
            self._write(frame, self._offset)
        except RendezvousConnectionError:
            # What got through would be a torn frame: the next writer could deal with it, but why leave it.
            with suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            raise
        self.replica.apply(records, host_time())
        self._offset += len(frame)

    def _write(self, data: bytes, offset: int, fd: int | None = None) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fd if fd is None else fd, view, offset)
                view, offset = view[written:], offset + written
        except OSError as exc:
            raise RendezvousConnectionError(
                f"the file store {self.path} cannot be written: {exc.strerror or exc}"
            ) from exc

    def _compact(self) -> None:
        if self._offset < max(self._compact_at, COMPACT_RATIO * self.replica.live):
            return
        self._locks.sweep(self.replica.leases)
        birth = self.replica.birth
        assert birth is not None
        draft = f"{self._path}.new"
        fd = -1
        try:
            old = os.fstat(self._fd)
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
            new = os.fstat(fd)
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                os.fchown(fd, old.st_uid, old.st_gid)
            # Locked before anybody can see it: whoever opens it waits until this call is over.
            try_lock(self.path, fd, fcntl.LOCK_EX)
            head = encode_head(birth.store, birth.generation + 1)
            self._write(head, 0, fd)
            offset = len(head)
            for records in self.replica.snapshot():
                frame = encode_frame(records)
                self._write(frame, offset, fd)
                offset += len(frame)
            os.rename(draft, self._path)
        except (OSError, RendezvousConnectionError, Busy):
            # Not allowed, or no room: go on with the long log, and try again when it has doubled.
            if fd >= 0:
                os.close(fd)
                with suppress(OSError):
                    os.unlink(draft)
            self._compact_at = 2 * self._offset
            return
        os.close(self._fd)
        self._fd, self._offset, self._identity = fd, offset, (new.st_dev, new.st_ino)
        self._compact_at = COMPACT_MIN
        self.replica.birth = type(birth)(birth.format, birth.store, birth.generation + 1)

    # Leases

    def _over(self, now: float) -> list[str]:
        """The leases whose time is over or whose owner has let go."""
        leases = self.replica.leases
        clock = host_clock()
        over = [name for name, lease in leases.items() if now - lease.refreshed(clock) >= lease.ttl]
        if now - self._probed >= PROBE_INTERVAL:
            over += [name for name in leases if not self._locks.owned(name) and name not in over]
            if not over:
                # Else the one who finds it must still say so, under the other lock.
                self._probed = now
        return over

    # The end

    def _close_log(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._offset = 0
            os.close(fd)

    def _release_all(self) -> None:
        self._locks.drop_all()
        self._close_log()

    def _forget(self) -> None:
        """In the child of a fork: close what belongs to the parent, whose locks the open files carry."""
        self._mutex = threading.Lock()
        self._locks.forget()
        self._close_log()


def _nothing(replica: Replica) -> tuple[list[Record], None]:
    return [], None


_disks: WeakSet[Disk] = WeakSet()


def _after_fork() -> None:
    for disk in list(_disks):
        disk._forget()


os.register_at_fork(after_in_child=_after_fork)
