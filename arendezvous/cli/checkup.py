"""Which checks are made, in which order, and what one hands to the next."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from ..agent.hosting import DYNAMIC_BACKENDS
from ..endpoint import format_endpoint, parse_rendezvous_endpoint
from ..errors import RendezvousConnectionError
from ..handler.create import DEFAULT_PORT, create_handler, file_path, store_type
from ..params.values import option_seconds
from ..store.hosting import is_this_machine
from ..store.link import reason_of
from ..wire.errors import WireError
from .checks import address, connect, files, host, limits, reach, resolve, run, skew, speak
from .checks.finding import Report, fail, note, ok, warn

if TYPE_CHECKING:
    from ..params import RendezvousParameters

__all__ = ("Case", "Checkup")

#: Seconds between two heartbeats unless it is said otherwise.
_HEARTBEAT: Final = 5.0
#: Most addresses of one name that are dialled.
_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined.

    Attributes:
        params: Backend, endpoint and options; the run id is any if ``run_id`` is not set.
        endpoint: What the user gave, None for nothing.
        run_id: The run to look at, None for none.
        listen: The port to listen on (0 = any), None not to.
        dial: Host and port to dial, None not to.
        limit: Longest wait of each check in seconds.
        listen_limit: How long to listen in seconds.
    """

    params: RendezvousParameters
    endpoint: str | None
    run_id: str | None
    listen: int | None
    dial: tuple[str, int] | None
    limit: float
    listen_limit: float


class Checkup:
    """One examination; what it finds goes to the report as it is found.

    Args:
        case: What is examined.
        report: Where findings go.

    Attributes:
        abandoned: A look-up was given up on, and its thread is still at it.
    """

    def __init__(self, case: Case, report: Report) -> None:
        self.abandoned = False
        self._case = case
        self._report = report
        self._names: resolve.Names | None = None
        self._connected = ""
        self._own = address.Own("", "")

    async def run(self) -> None:
        """Make all the checks that the case asks for. Nothing is written, joined or hosted.

        Cancellation:
            Safe.
        """
        case = self._case
        if case.dial is not None:
            await self._check("dial", self._dial)
        if case.dial is None or case.endpoint is not None:
            await self._check("endpoint", self._examine_backend)
            await self._check(address.SUBJECT, self._examine_address)
        if case.dial is None:
            self._report.add(limits.judge_files(limits.open_files()))
            await self._check("IPv6", self._examine_ipv6)
        if case.listen is not None:
            await self._check("listen", self._listen)

    async def _check(self, subject: str, step: Callable[[], Awaitable[None]]) -> None:
        """One check; whatever goes wrong in it is a finding and stops no other."""
        try:
            await step()
        except RendezvousConnectionError as exc:
            self._report.add(fail(subject, str(exc), "see the checks around this one"))
        except Exception as exc:  # noqa: BLE001 - a doctor that stumbles over what is ill helps nobody
            self._report.add(
                fail(subject, f"the check broke: {type(exc).__name__}: {reason_of(exc)}", "please report this")
            )

    async def _look_up(self, name: str, port: int) -> resolve.Names:
        # Until it has come back, because it may be this task that is ended first.
        before, self.abandoned = self.abandoned, True
        names = await resolve.look_up(name, port, self._case.limit)
        self.abandoned = before or names.abandoned
        return names

    # The store

    async def _examine_backend(self) -> None:
        case, params = self._case, self._case.params
        if params.backend not in (*DYNAMIC_BACKENDS, "memory", "static"):
            self._examine_plugin()
            return
        if case.endpoint is None and params.backend != "memory" and (store_type(params) != "file" or not case.run_id):
            self._report.add(note("endpoint", "none was given", "give HOST:PORT to look at a store; see --help"))
            return
        if params.backend == "memory":
            todo = "nothing; for several processes use p10d, the default"
            self._report.add(note("backend", "memory: nodes meet within one process; no network is involved", todo))
            return
        if store_type(params) == "file" and params.backend != "static":
            self._check_options()
            self._report.add(*files.examine(file_path(params)))
            if case.run_id is not None and file_path(params).is_file():
                self._report.add(*await run.look(params, case.limit))
            return
        await self._examine_store()

    def _examine_plugin(self) -> None:
        backend = self._case.params.backend
        try:
            create_handler(self._case.params)
        except ValueError as exc:
            todo = "correct --rdzv-backend or --rdzv-conf, or install the package that has the plug-in on this node"
            self._report.add(fail("backend", str(exc), todo))
            return
        todo = "see its documentation for how to look at it"
        self._report.add(note("backend", f"{backend} is a plug-in; only it knows its endpoint", todo))

    def _check_options(self) -> None:
        """A misspelt option stops every agent before it connects."""
        if self._case.params.backend == "static":
            return  # takes them together with a rank, which is no business of a doctor
        try:
            create_handler(self._case.params)
        except ValueError as exc:
            self._report.add(fail("options", str(exc), "correct --rdzv-conf on all nodes"))

    async def _examine_store(self) -> None:
        case, params = self._case, self._case.params
        try:
            name, port = parse_rendezvous_endpoint(case.endpoint, DEFAULT_PORT)
        except ValueError as exc:
            todo = "write HOST, HOST:PORT or [IPv6]:PORT, the same on all nodes"
            self._report.add(fail("endpoint", str(exc), todo))
            return
        self._judge_endpoint(name, port)
        self._check_options()
        self._names = names = await self._look_up(name, port)
        self._report.add(*resolve.judge(names))
        # A resolver that hangs would hang once more.
        asked = params.get_as_bool("is_host", None)
        if names.abandoned and asked is None and params.backend != "static":
            return
        role = await host.who_hosts(params, name, case.limit)
        attempts = await connect.knock_all(names.addresses, port, case.limit) if port else []
        self._report.add(*connect.judge(attempts, may_host=role.hosts))
        works = [attempt for attempt in attempts if not attempt.trouble]
        if works:
            if not await self._speak(works[0]):
                return  # a stranger has the port, or a store that is ill: who would host is not the question
            if case.run_id is not None and params.backend != "static":
                self._report.add(*await run.look(params, case.limit))
        elif not role.hosts and not any(attempt.trouble == "refused" for attempt in attempts):
            return  # nobody knows whether somebody serves
        bound = params.get("bind", None) is not None
        self._report.add(*host.judge(role, names, format_endpoint(name, port), served=bool(works), bound=bound))
        if role.hosts and not works:
            self._report.add(await host.judge_port(params, name, port))

    def _judge_endpoint(self, name: str, port: int) -> None:
        endpoint = format_endpoint(name, port)
        if name in ("0.0.0.0", "::"):
            todo = (
                "give the address of the host that serves as the endpoint, and bind=0.0.0.0 to listen on all of its own"
            )
            self._report.add(warn("endpoint", f"{endpoint}: {name} is no host; every node would dial itself", todo))
        elif port == 0:
            todo = "give one port to all nodes, such as 29400"
            self._report.add(warn("endpoint", f"{endpoint}: port 0 is another one each time", todo))
        elif self._case.endpoint == name or f"[{name}]" == self._case.endpoint:
            self._report.add(ok("endpoint", f"{endpoint} ({DEFAULT_PORT} is the default port)"))
        else:
            self._report.add(ok("endpoint", endpoint))

    async def _speak(self, attempt: connect.Attempt) -> bool:
        """Talk to whoever listens; whether that is a store of ours."""
        limit = self._case.limit
        interval = option_seconds(self._case.params.config, "keep_alive_interval") or _HEARTBEAT
        async with speak.converse(attempt.address, attempt.port, limit) as (talk, finding, own):
            self._report.add(finding)
            self._connected = own or attempt.own
            if talk is None:
                return False
            try:
                trips = await speak.measure_round_trips(talk, limit)
                self._report.add(speak.judge_round_trips(trips, interval, limit))
            except (OSError, WireError, anyio.EndOfStream, anyio.BrokenResourceError) as exc:
                what = reason_of(exc) or "it closed the connection"
                todo = "see whether a proxy or firewall cuts connections, and what the store's log says"
                self._report.add(fail("round trip", f"the store said hello and then no more: {what}", todo))
                return False
            if not trips:
                return False
            samples: list[skew.Sample] = []
            try:
                samples = await speak.read_clock(talk, limit)
            except (OSError, WireError, anyio.EndOfStream, anyio.BrokenResourceError):
                pass  # a store of a release that does not tell it hangs up
            self._report.add(skew.judge(samples))
            return True

    # This machine

    async def _examine_address(self) -> None:
        case = self._case
        if case.params.backend == "memory":
            return
        targets = self._names.addresses if self._names is not None else ()
        unknown = case.endpoint is None and store_type(case.params) != "file"
        self._own = own = await address.own_address(
            case.params.local_addr, self._connected, None if unknown else targets
        )
        found = await self._look_up(own.address, 0)
        here = own.source != "--local-addr" or found.abandoned or await is_this_machine(own.address, case.limit)
        fixed = case.params.get("bootstrap_port", None) is not None
        self._report.add(*address.judge(own, found, alone=self._alone(), here=here, bootstrap_port=fixed))

    def _alone(self) -> bool:
        names = self._names
        if names is None:
            return store_type(self._case.params) == "file"
        return names.loopback and (names.literal or names.host.casefold() == "localhost")

    async def _examine_ipv6(self) -> None:
        self._report.add(await limits.judge_ipv6())

    # Reaching each other

    async def _dial(self) -> None:
        assert self._case.dial is not None
        name, port = self._case.dial
        names = await self._look_up(name, port)
        if not names.literal:
            self._report.add(*resolve.judge(names))
        async with anyio.create_task_group() as tasks:

            async def one(target: str) -> None:
                self._report.add(*await reach.dial(target, port, self._case.limit))

            for target in names.addresses[:_MOST]:
                tasks.start_soon(one, target)

    async def _listen(self) -> None:
        assert self._case.listen is not None
        came: list[reach.Visit] = []

        def tell(visit: reach.Visit) -> None:
            if visit.words is None:
                came.append(visit)
            self._report.add(reach.judge_visit(visit))

        async with reach.open_listener(self._case.listen) as listener:
            place = format_endpoint(self._own.address, listener.port)
            how = f"run on the other node: arendezvous doctor --dial {place}"
            wait = (
                f"listening on port {listener.port} of all addresses for {self._case.listen_limit:g} s; Ctrl-C ends it"
            )
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                # Not before: who reads this may press Ctrl-C at once.
                self._report.add(note("listen", wait, how))
                async with anyio.create_task_group() as tasks:

                    async def obey() -> None:
                        async for _ in signals:
                            tasks.cancel_scope.cancel()

                    tasks.start_soon(obey)
                    with anyio.move_on_after(self._case.listen_limit):
                        await listener.serve(tell)
                    tasks.cancel_scope.cancel()
        if not came:
            todo = (
                f"if a --dial to {place} timed out there, packets are dropped: firewall, security group, network "
                "policy or NAT; if it was refused, a firewall rejects or the address is another host's"
            )
            self._report.add(fail("listen", "nobody reached this machine", todo))
