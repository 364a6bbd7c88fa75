"""The listening side of a store server: which addresses, one port, an accept loop that survives."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

import anyio
from anyio.abc import SocketListener

from ..errors import RendezvousConnectionError, RendezvousUsageError
from ..wire.frames import MAX_FRAME
from .base import DISCONNECT_GRACE
from .hosting import addresses_of, enable_keep_alive
from .service import HELLO_TIMEOUT, STALL_TIMEOUT, StoreService

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import ByteStream, TaskGroup

__all__ = ("TCPStoreServer", "open_sockets")

_log = logging.getLogger("arendezvous.store.server")

_BACKLOG: Final = 4096
#: Seconds to wait when the process has run out of file descriptors or memory for another connection.
_ACCEPT_PAUSE: Final = 0.1
#: How often another port is tried when the kernel's choice for one address is taken on the next.
_PORT_TRIES: Final = 20


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind ``host`` on one port: a literal exactly, ``localhost`` as 127.0.0.1 and ::1, a name as what it resolves to.

    The sockets are bound and do not listen yet. Nothing is bound wider than asked: all interfaces only for ``0.0.0.0``
    (IPv4) and ``::`` (IPv6 and IPv4).

    Args:
        host: A literal address without brackets, or a name.
        port: The port; 0 = one that is free on all of the addresses.

    Raises:
        RendezvousConnectionError: the name does not resolve, no address of it is local, or the port is taken.

    Cancellation:
        Safe: nothing stays bound.
    """
    try:
        addresses = await addresses_of(host)
    except OSError as exc:
        raise RendezvousConnectionError(f"cannot listen on {host}:{port}: the name does not resolve ({exc})") from exc
    for attempt in range(_PORT_TRIES):
        try:
            return _bind_all(addresses, port)
        except OSError as exc:
            if port == 0 and exc.errno == errno.EADDRINUSE and attempt < _PORT_TRIES - 1:
                continue
            raise RendezvousConnectionError(
                f"cannot listen on {host}:{port} ({', '.join(addresses)}): {exc.strerror or exc}; "
                + (
                    "another process has the port, choose another one or 0"
                    if exc.errno == errno.EADDRINUSE
                    else "bind an address of this machine, or 0.0.0.0 for all"
                )
            ) from exc
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _bind_all(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Bind every address that exists here; at least one must."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        absent: OSError | None = None
        for address in addresses:
            try:
                sock = _bind(address, port)
            except OSError as exc:
                # No such address or no such protocol here: the others will do. A taken port is another matter.
                if exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
                    raise
                absent = exc
                continue
            opened.callback(sock.close)
            sockets.append(sock)
            port = sock.getsockname()[1]
        if not sockets:
            raise absent or OSError(errno.EADDRNOTAVAIL, "there is no address to bind")
        opened.pop_all()
        return sockets


def _bind(address: str, port: int) -> socket.socket:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return _bind(str(parsed.ipv4_mapped), port)
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        if family == socket.AF_INET6 and parsed.is_unspecified:
            # All interfaces of a machine without IPv6.
            return _bind("0.0.0.0", port)
        raise
    try:
        if os.name != "nt":
            # On Windows the option means something else: it lets two servers share a port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if parsed.is_unspecified else 1)
            flags = socket.AI_NUMERICHOST | socket.AI_PASSIVE
            # Only this gives an address with a scope (fe80::1%eth0) its number.
            sock.bind(socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, 0, flags)[0][4])
        else:
            sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


class TCPStoreServer:
    """Serves a store on TCP or a UNIX socket; an async context manager.

    Its tasks are shielded: while the scope around it is cancelled it goes on serving the others until
    :meth:`aclose`, which leaving the block calls.

    Args:
        host: What clients dial and, unless ``bind`` is given, what is bound; see :func:`open_sockets`.
        port: The port; 0 = a free one.
        bind: Address to bind instead of ``host``, such as ``0.0.0.0``.
        path: Serve a UNIX socket at this path instead of TCP.
        sock: Serve this bound socket instead, listening already or not; it is owned, and closed, by the server.
        epoch: Names the data, 16 bytes; random unless given.
        token: What clients must say in their hello; empty = anybody is served.
        grace: Seconds that leases outlive their client's connection.
        max_frame: Largest message in bytes.
        hello_timeout: Seconds that a connection has to say hello.
        stall_timeout: Seconds after which a client that does not read is dropped.

    Raises:
        ValueError: ``path`` and ``sock`` together, or an impossible port.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        bind: str | None = None,
        path: str | os.PathLike[str] | None = None,
        sock: socket.socket | None = None,
        epoch: bytes | None = None,
        token: bytes = b"",
        grace: float = DISCONNECT_GRACE,
        max_frame: int = MAX_FRAME,
        hello_timeout: float = HELLO_TIMEOUT,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        if path is not None and sock is not None:
            raise ValueError("give path or sock, not both")
        if not 0 <= port <= 65535:
            raise ValueError(f"a port is 0 to 65535, not {port}")
        self.service = StoreService(
            epoch=epoch,
            token=token,
            grace=grace,
            max_frame=max_frame,
            hello_timeout=hello_timeout,
            stall_timeout=stall_timeout,
        )
        self._host = host
        self._port = port
        self._bind = bind
        self._path = None if path is None else os.fspath(path)
        self._sock = sock
        self._owns_path = path is not None
        self._listeners: list[SocketListener] = []
        self._addresses: tuple[tuple[str, int], ...] = ()
        self._tasks: TaskGroup | None = None
        self._scope = anyio.CancelScope(shield=True)
        self._stopping = False
        self._entered = False

    @property
    def host(self) -> str:
        """What clients dial: the host as given, or the path of the UNIX socket."""
        return self._host if self._path is None else self._path

    @property
    def port(self) -> int:
        """The port that is bound; 0 before entry and on a UNIX socket."""
        return self._port

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The ``(address, port)`` pairs that are really bound."""
        return self._addresses

    @property
    def endpoint(self) -> str:
        """``host:port`` with IPv6 in brackets, or ``unix:path``."""
        if self._path is not None:
            return f"unix:{self._path}"
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def epoch(self) -> bytes:
        """Names the data behind this server; a new server has a new one."""
        return self.service.epoch

    @property
    def clients(self) -> int:
        """How many clients that have said hello are connected."""
        return self.service.clients

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RendezvousUsageError("a store server is entered once; make a new one")
        self._entered = True
        sockets = await self._open()
        try:
            for sock in sockets:
                sock.listen(_BACKLOG)
                sock.setblocking(False)
            self._listeners = [await SocketListener.from_socket(sock) for sock in sockets]
        except BaseException as exc:
            for sock in sockets:
                sock.close()
            if isinstance(exc, (OSError, ValueError)):
                raise RendezvousConnectionError(f"cannot listen on {self.endpoint}: {exc}") from exc
            raise
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        try:
            await self.aclose()
        finally:
            self._scope.cancel()
            # Without the exception of the body, which a task group would wrap.
            await self._tasks.__aexit__(None, None, None)
        return None

    async def aclose(self) -> None:
        """Stop listening, drop every client and return when all of them are gone; idempotent.

        Cancellation:
            Works in a cancelled scope too: it takes about a second at most and is shielded for that long.
        """
        self._stopping = True
        with anyio.move_on_after(1, shield=True):
            await self._close_listeners()
            await self.service.aclose()
        self._scope.cancel()

    async def stop_accepting(self) -> None:
        """Take no further clients; those that are connected stay.

        Cancellation:
            Shielded for as long as closing a socket takes.
        """
        self._stopping = True
        with anyio.move_on_after(1, shield=True):
            await self._close_listeners()

    async def wait_idle(self, seconds: float, *, from_start: bool = True) -> None:
        """Return when no client has been connected for ``seconds``; see :meth:`StoreService.wait_idle`.

        Args:
            seconds: How long nobody must have been connected.
            from_start: False: the time before the first client does not count.

        Cancellation:
            Safe.
        """
        await self.service.wait_idle(seconds, from_start=from_start)

    async def drain(self, linger: float, *, others_than: int = 0) -> bool:
        """Wait until the clients have gone, at most ``linger`` seconds; True if they have.

        Args:
            linger: Longest wait in seconds.
            others_than: How many clients of one's own may stay.

        Cancellation:
            Safe.
        """
        return await self.service.drain(linger, others_than=others_than)

    async def _open(self) -> list[socket.socket]:
        if self._path is not None:
            return [_open_unix(self._path)]
        if self._sock is not None:
            sockets = [self._sock]
        else:
            sockets = await open_sockets(self._bind or self._host, self._port)
        if sockets[0].family in (socket.AF_INET, socket.AF_INET6):
            self._addresses = tuple((sock.getsockname()[0], sock.getsockname()[1]) for sock in sockets)
            self._port = self._addresses[0][1]
        else:
            self._path = str(sockets[0].getsockname())
        return sockets

    async def _run(self) -> None:
        with self._scope:
            async with self.service, anyio.create_task_group() as tasks:
                for listener in self._listeners:
                    tasks.start_soon(self._accept, listener, tasks)
                await anyio.sleep_forever()

    async def _accept(self, listener: SocketListener, tasks: TaskGroup) -> None:
        failing = False
        while not self._stopping:
            try:
                stream = await listener.accept()
            except anyio.ClosedResourceError:
                return
            except Exception as exc:  # noqa: BLE001 - nothing that accepting may raise is worth the other clients
                # Out of descriptors or memory, or a client that was gone before it was taken: none of these may end
                # the server or keep it busy.
                if not failing:
                    _log.warning("the store server cannot accept a connection now: %s", exc.__cause__ or exc)
                failing = True
                await anyio.sleep(_ACCEPT_PAUSE)
                continue
            failing = False
            tasks.start_soon(self._serve, stream)

    async def _serve(self, stream: ByteStream) -> None:
        enable_keep_alive(stream)
        await self.service.serve_stream(stream)

    async def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.aclose()
        if self._path is not None and self._owns_path and listeners:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _open_unix(path: str) -> socket.socket:
    """Bind a UNIX socket; a file that a dead server left behind is replaced, a live one is not.

    Raises:
        RendezvousConnectionError: another server has the path, or it cannot be bound.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
                os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o600)
    except BaseException as exc:
        sock.close()
        if isinstance(exc, OSError):
            raise RendezvousConnectionError(f"cannot listen on unix:{path}: {exc.strerror or exc}") from exc
        raise
    return sock


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True
