"""One client of a server: reads its requests, does them on the table, writes the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import SocketStream

from ..wire import messages as say
from ..wire.errors import WireError
from ..wire.frames import FrameDecoder, encode_frame
from ..wire.hello import ClientHello, ClientHelloDecoder, ServerHello, Status
from .hostclock import wall_time

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from .service import StoreService
    from .table import Waiter

__all__ = ("ROOT", "Connection", "close_stream")

_log = logging.getLogger("arendezvous.store.server")

#: Native clients keep their keys here, where the clients of other dialects keep theirs.
ROOT: Final = b"/"
#: With this many bytes of answers not sent yet, no further request of the same client is read.
_HIGH_WATER: Final = 1024 * 1024
#: With this many, news for a client that does not read ends its connection.
_MAX_BACKLOG: Final = 64 * 1024 * 1024
#: Most waiting requests of one client.
_MAX_WAITING: Final = 65536


async def close_stream(stream: ByteStream) -> None:
    """Close a stream without any last words, and at once.

    Cancellation:
        The stream is closed all the same.
    """
    if isinstance(stream, SocketStream):
        # Says nothing and waits for nothing; a cancelled scope for it, as below, would cost more than the rest.
        await stream.aclose()
    else:
        await anyio.aclose_forcefully(stream)


class Connection:
    """One client.

    Attributes:
        session: Names the client once it has said hello, else None.
        sends: How many pieces have been begun to send.
        sending: Whether one is being sent now.
        scope: Ends the connection when cancelled; another one once the hellos are exchanged.
    """

    def __init__(self, service: StoreService, stream: ByteStream) -> None:
        self.session: bytes | None = None
        self.sends = 0
        self.sending = False
        self.scope = anyio.CancelScope()
        self._service = service
        self._table = service.table
        self._stream = stream
        self._waiters: dict[int, Waiter] = {}
        self._retired = False
        # While a request of this client is handled, its own task sends the answers.
        self._inline = False
        self._out: list[bytes] = []
        self._backlog = 0
        # Events are made when somebody is about to wait, which spares most answers one.
        self._wake: anyio.Event | None = None
        self._drained: anyio.Event | None = None
        self._actions: dict[type[say.Request], Callable[[Any], None]] = {
            say.Set: self._set,
            say.Peek: self._peek,
            say.Get: self._get,
            say.Check: self._check,
            say.CompareAndSwap: self._compare_and_swap,
            say.Add: self._add,
            say.Append: self._append,
            say.Delete: self._delete,
            say.NumKeys: self._num_keys,
            say.MultiSet: self._multi_set,
            say.Scan: self._scan,
            say.Watch: self._watch,
            say.LeaseOpen: self._lease_open,
            say.LeaseSet: self._lease_set,
            say.LeaseClose: self._lease_close,
            say.Leases: self._leases,
            say.Cancel: self._cancel,
            say.Ping: self._done,
            say.Clock: self._clock,
        }

    async def run(self) -> None:
        """Serve until the peer or the server ends it. What the peer does wrong costs only this connection."""
        rest = None
        try:
            with self.scope:
                rest = await self._greet()
            if rest is None or self.scope.cancel_called or self._retired:
                return
            async with anyio.create_task_group() as tasks:
                # Instead of the first, not within it: every call looks through all scopes around it.
                self.scope = tasks.cancel_scope
                tasks.start_soon(self._guard, self._write_news)
                await self._guard(self._serve, rest)
        finally:
            self._forget()

    def retire(self) -> None:
        """Do nothing for this client any more, whatever it still has under way; end the connection."""
        self._forget()
        self.scope.cancel()

    async def hang_up(self) -> None:
        """Do the same by closing the stream, which costs less than a cancellation: a server may have thousands.

        Cancellation:
            The stream is closed all the same.
        """
        self._forget()
        await close_stream(self._stream)

    def _forget(self) -> None:
        self._retired = True
        if self._wake is not None:
            self._wake.set()
        for waiter in self._waiters.values():
            waiter.cancel()
        self._waiters.clear()
        self._out.clear()
        self._backlog = 0

    async def _guard(self, step: Callable[..., Any], *args: object) -> None:
        # A nested task group would wrap whatever ends one side; here it is judged where it happens.
        try:
            await step(*args)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except WireError as exc:
            _log.warning("dropping a store client: %s", exc)
        except Exception:  # noqa: BLE001 - a mistake in handling one client must not reach the others
            _log.exception("dropping a store client: its request could not be handled")
        if not self._retired:
            self.retire()

    async def _greet(self) -> bytes | None:
        """Exchange hellos; return what the client sent after its own, or None if it is not to be served."""
        decoder = ClientHelloDecoder()
        try:
            with anyio.fail_after(self._service.hello_timeout):
                while (got := decoder.feed(await self._stream.receive(1024))) is None:
                    pass
                hello, rest = got
                status = self._judge(hello)
                if status is Status.OK:
                    # Before the answer: who has it may count on being counted, and on having its leases.
                    self.session = hello.session
                    self._service.joined(self)
                await self._stream.send(ServerHello(self._service.epoch, status).encode())
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return None
        except TimeoutError:
            # Not a warning: whoever scans ports would fill the log.
            _log.info("dropping a connection to the store: no hello within %g s", self._service.hello_timeout)
            return None
        except WireError as exc:
            _log.info("dropping a connection to the store: %s", exc)
            return None
        if status is not Status.OK:
            _log.warning("refusing a store client: %s (it speaks version %d)", status.name, hello.version)
            return None
        return rest

    def _judge(self, hello: ClientHello) -> Status:
        if hello.version != ServerHello(self._service.epoch).version:
            return Status.WRONG_VERSION
        return Status.OK if self._service.accepts(hello.token) else Status.WRONG_TOKEN

    async def _serve(self, data: bytes) -> None:
        decoder = FrameDecoder(self._service.max_frame)
        while True:
            for content in decoder.feed(data):
                request = say.decode_request(content)
                action = self._actions[type(request)]
                self._inline = True
                try:
                    action(request)
                except ValueError as exc:
                    self._answer(say.Failed(request.id, str(exc)))
                finally:
                    self._inline = False
                while self._backlog > _HIGH_WATER:
                    # Whoever asks faster than it reads waits for itself.
                    await self._flush()
                    if self._retired:
                        return
            if self._out:
                await self._flush()
            data = await self._stream.receive(65536)
            # On asyncio a receive may succeed although the cancellation of its task is on the way.
            if self._retired:
                return

    # Writing

    def _answer(self, reply: say.Reply) -> None:
        if self._retired:
            return
        content = say.encode(reply)
        if len(content) > self._service.max_frame:
            text = f"the answer has {len(content)} bytes; at most {self._service.max_frame} fit a message"
            content = say.encode(say.Failed(reply.id, text))
        if self._backlog > _MAX_BACKLOG:
            _log.warning("dropping a store client that does not read: %d bytes wait for it", self._backlog)
            self.scope.cancel()
            return
        self._out.append(encode_frame(content, self._service.max_frame))
        self._backlog += len(content)

    def _announce(self, reply: say.Reply) -> None:
        """Answer out of turn, from whatever task changed the table."""
        self._answer(reply)
        if not self._inline and self._wake is not None:
            self._wake.set()

    async def _write_news(self) -> None:
        while not self._retired:
            while self._out and not self.sending:
                await self._flush()
            self._wake = anyio.Event()
            await self._wake.wait()
            self._wake = None

    async def _flush(self) -> None:
        """Send all that waits, in one piece; or wait until the task that does so now has sent it."""
        if self.sending:
            self._drained = self._drained or anyio.Event()
            await self._drained.wait()
            return
        self.sending = True
        try:
            while self._out:
                data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
                self._out.clear()
                self.sends += 1
                await self._stream.send(data)
                self._backlog = sum(map(len, self._out))
        finally:
            self.sending = False
            if self._drained is not None:
                self._drained.set()
                self._drained = None

    # Requests

    def _done(self, request: say.Request) -> None:
        self._answer(say.Done(request.id))

    def _clock(self, request: say.Clock) -> None:
        self._answer(say.Time(request.id, wall_time()))

    def _set(self, request: say.Set) -> None:
        self._table.set(ROOT + request.key, request.value)
        self._done(request)

    def _peek(self, request: say.Peek) -> None:
        self._answer(say.Value(request.id, self._table.get(ROOT + request.key)))

    def _get(self, request: say.Get) -> None:
        def tell(values: Sequence[bytes]) -> None:
            self._waiters.pop(request.id, None)
            self._announce(say.Values(request.id, list(values) if request.want else []))

        self._admit(request)
        self._register(request, self._table.wait([ROOT + key for key in request.keys], tell))

    def _check(self, request: say.Check) -> None:
        missing = self._table.missing([ROOT + key for key in request.keys])
        self._answer(say.Values(request.id, [key[len(ROOT) :] for key in missing]))

    def _compare_and_swap(self, request: say.CompareAndSwap) -> None:
        key = ROOT + request.key
        swapped, _ = self._table.compare_and_swap(key, request.expected, request.desired)
        # Who swapped knows what is stored now.
        self._answer(say.Swapped(request.id, swapped, None if swapped else self._table.get(key)))

    def _add(self, request: say.Add) -> None:
        self._answer(say.Number(request.id, self._table.add(ROOT + request.key, request.amount)))

    def _append(self, request: say.Append) -> None:
        self._answer(say.Number(request.id, self._table.append(ROOT + request.key, request.value)))

    def _delete(self, request: say.Delete) -> None:
        self._answer(say.Number(request.id, int(self._table.delete(ROOT + request.key))))

    def _num_keys(self, request: say.NumKeys) -> None:
        self._answer(say.Number(request.id, self._table.count(ROOT)))

    def _multi_set(self, request: say.MultiSet) -> None:
        self._table.set_many([(ROOT + key, value) for key, value in request.pairs])
        self._done(request)

    def _scan(self, request: say.Scan) -> None:
        found = self._table.scan(ROOT + request.prefix)
        self._answer(say.Pairs(request.id, [(key[len(ROOT) :], value) for key, value in found]))

    def _watch(self, request: say.Watch) -> None:
        def tell(value: bytes | None) -> None:
            self._waiters.pop(request.id, None)
            self._announce(say.Value(request.id, value))

        self._admit(request)
        self._register(request, self._table.watch(ROOT + request.key, request.held, tell))

    def _admit(self, request: say.Request) -> None:
        if request.id in self._waiters:
            raise WireError(f"the id {request.id} is waiting already")
        if len(self._waiters) >= _MAX_WAITING:
            raise WireError(f"more than {_MAX_WAITING} waiting requests")

    def _register(self, request: say.Request, waiter: Waiter | None) -> None:
        if waiter is not None:
            self._waiters[request.id] = waiter

    def _cancel(self, request: say.Cancel) -> None:
        waiter = self._waiters.pop(request.id, None)
        if waiter is not None:
            waiter.cancel()

    def _lease_open(self, request: say.LeaseOpen) -> None:
        name = (self.session, request.lease)
        self._table.lease_open(name, self.session, request.ttl, anyio.current_time())
        self._service.retime()
        self._done(request)

    def _lease_set(self, request: say.LeaseSet) -> None:
        name = (self.session, request.lease)
        now = anyio.current_time()
        self._table.lease_set(name, self.session, request.ttl, ROOT + request.key, request.value, now)
        self._service.retime()
        self._done(request)

    def _lease_close(self, request: say.LeaseClose) -> None:
        self._answer(say.Number(request.id, int(self._table.lease_close((self.session, request.lease)))))

    def _leases(self, request: say.Leases) -> None:
        found = self._table.leases(ROOT + request.prefix, anyio.current_time())
        self._answer(say.LeaseList(request.id, [(key[len(ROOT) :], age, ttl, there) for key, age, ttl, there in found]))
