"""The elastic handler: joins, re-joins, leaves, finishes and closes over any store (protocol.md)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

import anyio

from ..backend import P10dRendezvousBackend, RendezvousBackend
from ..core.fold import Fresh
from ..core.ops import Me, Role, View, sentence
from ..core.state import AgreedSettings, RendezvousState
from ..errors import RendezvousConnectionError, RendezvousError, RendezvousTimeoutError, RendezvousUsageError
from ..node import NodeDesc
from ..params import RendezvousParameters, RendezvousSettings
from ..store.base import Store
from .base import RendezvousHandler
from .bootstrap import enter_round
from .changes import Changes, MembershipChange, Publisher
from .closing import close_run
from .endings import leaf
from .entropy import Environment, SystemEnvironment
from .executor import Executor
from .info import RendezvousInfo, host_name
from .keys import Keys
from .outcome import Counters, Limits
from .recording import Recorder
from .rounds import Round, RoundKeeper
from .status import RendezvousStatus, describe

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("Connector", "DynamicRendezvousHandler", "agreed_settings")

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Yields the store to use and the address under which this node reaches it (None = not over a network).
Connector = Callable[[], AbstractAsyncContextManager[tuple[Store, str | None]]]

_local_ids = iter(range(2**62))


def agreed_settings(settings: RendezvousSettings) -> AgreedSettings:
    """The part of the settings that all nodes of a run must share (protocol.md P12)."""
    return AgreedSettings(
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        rank_order=settings.rank_order,
        last_call=settings.timeout.last_call.total_seconds(),
        keep_alive_interval=settings.keep_alive_interval.total_seconds(),
        keep_alive_max_attempt=settings.keep_alive_max_attempt,
    )


class DynamicRendezvousHandler(RendezvousHandler, RoundKeeper):
    """An elastic rendezvous of ``min_nodes`` to ``max_nodes`` nodes over a store.

    Args:
        connect: Yields ``(store, own address)``; entered with the handler and left with it.
        settings: Run id, sizes, time-outs and keep-alive.
        params: The rest: local address, node rank, local world size, attributes and options.
        backend_name: The registered name this handler answers to.
        backend: Keeps the state somewhere else than in the store.
        env: Clock and randomness; the real ones by default.
    """

    def __init__(
        self,
        connect: Connector,
        settings: RendezvousSettings,
        params: RendezvousParameters,
        *,
        backend_name: str = "p10d",
        backend: Callable[[Store], RendezvousBackend] | None = None,
        env: Environment | None = None,
    ) -> None:
        self._connect, self._settings, self._params = connect, settings, params
        self._name, self._make_backend = backend_name, backend
        self._env: Environment = env if env is not None else SystemEnvironment()
        self._keys = Keys(settings.run_id)
        self._recorder = Recorder(settings.run_id)
        self._publisher = Publisher(self._recorder.change)
        self._guard = anyio.ResourceGuard("joining")
        self._stack: AsyncExitStack | None = None
        self._store: Store | None = None
        self._backend: RendezvousBackend | None = None
        self._executor: Executor | None = None
        self._round: Round | None = None
        # What ended the round before anybody held it: news may come while the member still waits for rank 0's address.
        self._early: tuple[MembershipChange, RendezvousError | None] | None = None
        self._info: RendezvousInfo | None = None
        self._failed: str | None = None
        self._entered = False
        self._leaves = 0
        self._warn_of_options()
        self.exit_barrier = params.get_as_seconds("exit_barrier", 300.0) or 300.0
        self._notify_lost = params.get_as_bool("notify_lost_nodes", True) is not False
        self._join_limit = settings.timeout.join.total_seconds()

    @classmethod
    def from_store(
        cls,
        store: Store,
        params: RendezvousParameters,
        *,
        env: Environment | None = None,
        backend_name: str | None = None,
    ) -> DynamicRendezvousHandler:
        """A handler over a store that the caller opened and will close.

        Args:
            store: Any open store; it must outlive the handler.
            params: Run id, sizes and options.
            env: Clock and randomness.
            backend_name: Defaults to the one in ``params``.
        """

        @asynccontextmanager
        async def connect() -> AsyncIterator[tuple[Store, str | None]]:
            yield store, getattr(store, "local_address", None)

        return cls(
            connect,
            RendezvousSettings.from_params(params),
            params,
            backend_name=backend_name or params.backend,
            env=env,
        )

    # ---- life -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RendezvousUsageError("A rendezvous handler is entered once; make a new one.")
        self._entered = True
        async with AsyncExitStack() as stack:
            try:
                store, reached_by = await stack.enter_async_context(self._connect())
            except Exception as exc:
                self._recorder.failed("connecting", exc)
                raise
            self._store, self._recorder.endpoint = store, store.endpoint
            self._backend = (
                self._make_backend(store)
                if self._make_backend is not None
                else P10dRendezvousBackend(store, self._settings.run_id, key=self._keys.state, name=self._name)
            )
            params = self._params
            node = NodeDesc(
                params.local_addr or reached_by or host_name(),
                os.getpid(),
                next(_local_ids),
                node_rank=params.node_rank,
                local_world_size=params.local_world_size,
                attributes=params.attributes or {},
            )
            self._recorder.node = node
            timeout = self._settings.timeout
            self._executor = Executor(
                self._env,
                self._backend,
                store,
                self._keys,
                node,
                agreed_settings(self._settings),
                Limits(timeout.join.total_seconds(), timeout.heartbeat.total_seconds()),
                notify_lost=self._notify_lost,
                publisher=self._publisher,
                on_round_over=self._round_over,
            )
            tg = await stack.enter_async_context(anyio.create_task_group())
            await tg.start(self._executor.run)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        assert self._stack is not None  # set on entry
        assert self._executor is not None
        # The driver is shielded: it withdraws by itself, and the task group's exit waits for it, cancelled or not.
        self._leaves += 1
        self._executor.stop()
        self._publisher.close()
        if self._info is not None:
            self._info.release_port()
        self._recorder.stopped()
        stack, self._stack = self._stack, None
        try:
            await stack.__aexit__(exc_type, exc, tb)
        except BaseExceptionGroup as group:
            if exc is not None and _leaves(exc) <= _leaves(group):
                return False  # the user's own exception wins, a group of theirs included
            first = leaf(group)
            raise first from first.__cause__
        return False

    # ---- what it is -------------------------------------------------------------------------------------------

    @property
    def settings(self) -> RendezvousSettings:
        """What this handler was started with."""
        return self._settings

    @property
    def node(self) -> NodeDesc:
        """This node as the others see it."""
        return self._running().me.node

    @property
    def store(self) -> Store:
        """The store underneath, not scoped to anything."""
        self._running()
        assert self._store is not None
        return self._store

    @property
    def counters(self) -> Counters:
        """What this node asked of the store so far."""
        return self._running().counters

    def get_backend(self) -> str:
        """The backend's registered name."""
        return self._name

    def get_run_id(self) -> str:
        """The run."""
        return self._settings.run_id

    # ---- joining ----------------------------------------------------------------------------------------------

    async def next_rendezvous(self) -> RendezvousInfo:
        """Join, or join again (see :meth:`RendezvousHandler.next_rendezvous`)."""
        executor = self._running()
        try:
            guard = self._guard
            guard.__enter__()
        except anyio.BusyResourceError as exc:
            raise RendezvousUsageError(
                f"Another task is already joining the rendezvous {self._settings.run_id!r} with this handler; "
                "use one handler per node."
            ) from exc
        try:
            if self._info is not None:
                self._info.release_port()
            self._recorder.joining()
            since, leaves = self._env.now(), self._leaves
            while True:
                failed, self._failed = self._failed, None
                self._round = self._early = None  # whatever ends from here on is another round
                waiter = executor.join(failed=failed is not None)
                settled = False
                try:
                    await waiter.event.wait()
                    if waiter.error is not None:
                        settled = True
                        raise waiter.error
                    assert waiter.state is not None
                    info = await enter_round(
                        executor,
                        self.store,
                        self._keys,
                        waiter.state,
                        self._env,
                        self._params,
                        since + self._join_limit,
                    )
                    settled = True
                finally:
                    if not settled:
                        await self._withdraw(executor)
                if info is not None:
                    self._info = info
                    self._recorder.joined(info)
                    return info
                if self._leaves != leaves:
                    raise RendezvousError(f"This node left the rendezvous {self.get_run_id()!r} while it was joining.")
        except RendezvousError as exc:
            self._recorder.failed("joining", exc)
            raise
        finally:
            guard.__exit__(None, None, None)

    async def _withdraw(self, executor: Executor) -> None:
        """Wait for the driver to withdraw; it does so even if this wait is cut short."""
        waiter = executor.withdraw()
        with anyio.move_on_after(Limits().withdraw + 0.25, shield=True):
            await waiter.event.wait()

    def fail(self, reason: str) -> None:
        """Say that the next join follows a failure (see :meth:`RendezvousHandler.fail`)."""
        self._failed = reason
        logger.info("%s: the next join follows a failure: %s", self._settings.run_id, reason)

    async def leave(self) -> None:
        """Withdraw from the round; the others go on (see :meth:`RendezvousHandler.leave`)."""
        self._leaves += 1
        await self._withdraw(self._running())

    # ---- reading ----------------------------------------------------------------------------------------------

    async def is_closed(self) -> bool:
        """Whether the run id was closed for ever (see :meth:`RendezvousHandler.is_closed`)."""
        state = await self._read("is_closed")
        return state is not None and state.is_closed

    async def num_nodes_waiting(self) -> int:
        """Reasons to re-join (see :meth:`RendezvousHandler.num_nodes_waiting`)."""
        state = await self._read("num_nodes_waiting")
        me = self._running().me
        if self._info is None or me.last_round < 0:
            return 0  # an outsider
        if self._running().role is None and me.role in (Role.LEAVING, Role.FINISHED):
            return 0  # left of its own accord, or its work is done
        if state is None or state.round_nonce != me.round_nonce:
            # This member's round is over without it: it must learn, or it would be a silent orphan (D9).
            return 0 if state is not None and (state.is_closed or state.listed(me.inc)) else 1
        if me.inc in state.gone and not state.is_closed:
            return max(1, state.num_nodes_waiting(notify_lost_nodes=self._notify_lost))
        return state.num_nodes_waiting(notify_lost_nodes=self._notify_lost)

    async def status(self) -> RendezvousStatus:
        """Who is in, who is missing (see :meth:`RendezvousHandler.status`)."""
        executor = self._running()
        state = await self._read("status")
        leases = await self._bounded("status", lambda: self.store.leases(self._keys.beats))
        now = self._env.now()
        reason = executor.reason if executor.role is not None else sentence(_spectator(executor.me, state), now)
        found = describe(
            state,
            leases,
            self._keys,
            self.store.endpoint,
            reason=reason,
            previous=self._info.participants if self._info is not None else (),
            bounds=(self._settings.min_nodes, self._settings.max_nodes),
        )
        if executor.role is None:
            return found
        join_left, last_call_left = executor.limits_left(now)
        wake_at = max(0.0, executor.wake_at - now) if executor.wake_at < math.inf else None
        return replace(found, wake_at=wake_at, join_left=join_left, last_call_left=last_call_left)

    def changes(self) -> Changes:
        """Every change of the membership from now on."""
        return self._publisher.listen()

    async def _read(self, what: str) -> RendezvousState | None:
        return await self._bounded(what, self._running().read)

    async def _bounded(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Bound a read by the heartbeat time-out: a store that hangs must not hang its readers (D29)."""
        limit = self._settings.timeout.heartbeat.total_seconds()
        with anyio.move_on_at(self._env.deadline(self._env.now() + limit)):
            return await operation()
        raise RendezvousConnectionError(
            f"The store at {self.store.endpoint} did not answer {what}() of {self._settings.run_id!r} within "
            f"{limit:g} s. Check that its host is alive and reachable."
        )

    # ---- closing ----------------------------------------------------------------------------------------------

    async def set_closed(self) -> None:
        """Close the run id for ever (see :meth:`RendezvousHandler.set_closed`)."""
        self._running()
        limit = self._settings.timeout.close.total_seconds()
        with anyio.move_on_at(self._env.deadline(self._env.now() + limit)) as scope:
            assert self._backend is not None  # set on entry
            await close_run(self.store, self._backend, self._keys, agreed_settings(self._settings), self._env)
            self._recorder.closed()
        if scope.cancelled_caught:
            raise RendezvousTimeoutError(
                f"Closing the rendezvous {self._settings.run_id!r} at {self.store.endpoint} took longer than "
                f"{limit:g} s; it may or may not be closed. Ask is_closed() or close it again."
            )

    # ---- rounds -----------------------------------------------------------------------------------------------

    def attach(self, world: Round) -> None:
        """From now on ``world`` is told when its membership ends."""
        self._round = world
        if self._early is not None:
            world.end(*self._early)  # it ended while the bootstrap address was awaited

    def detach(self, world: Round) -> None:
        """``world`` is over."""
        if self._round is world:
            self._round = None

    def mark_finished(self) -> None:
        """This member's work is done."""
        self._running().finish()

    async def released(self, limit: float) -> str:
        """Wait until this finished member owes nothing any more.

        Cancellation:
            Safe: the member stays finished.
        """
        waiter = self._running().finish()
        with anyio.move_on_at(self._env.deadline(self._env.now() + limit)) as scope:
            await waiter.event.wait()
        if scope.cancelled_caught:
            state = self._running().state
            rest = [inc for inc in state.live if inc not in state.finished] if state is not None else []
            logger.warning(
                "%s: not everybody finished within the exit barrier of %g s; still at work: %s",
                self._settings.run_id,
                limit,
                state.names(rest) if state is not None else "unknown",
            )
            return f"the exit barrier of {limit:g} s ended"
        self._recorder.finished(waiter.reason)
        return waiter.reason

    def _round_over(self, change: MembershipChange, error: RendezvousError | None) -> None:
        if self._round is not None:
            self._round.end(change, error)
        elif self._early is None:
            self._early = (change, error)

    def _running(self) -> Executor:
        if self._executor is None or self._stack is None:
            raise RendezvousUsageError(
                f"The rendezvous handler of {self._settings.run_id!r} is not open; use it inside 'async with handler:'."
            )
        return self._executor

    def _warn_of_options(self) -> None:
        if self._params.node_rank is not None and self._settings.rank_order != "node_rank":
            logger.warning(
                "node_rank=%s is ignored: ranks follow rank_order=%s; set rank_order=node_rank to use it",
                self._params.node_rank,
                self._settings.rank_order,
            )


def _spectator(me: Me, state: RendezvousState | None) -> View:
    """A view of somebody who wants nothing, for a sentence."""
    return View(state=state, records=(), me=me, fresh=Fresh(b"", b""))


def _leaves(error: BaseException) -> set[int]:
    """The identities of the real errors; groups in between are rebuilt on their way through trio."""
    if isinstance(error, BaseExceptionGroup):
        return set().union(*(_leaves(inner) for inner in error.exceptions))
    return {id(error)}
