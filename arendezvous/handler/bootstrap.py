"""From a completed round to what its member is given.

The bootstrap address is agreed once per round and never outlives it (D2-D4, R7, R8).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable

import anyio

from ..core.ops import Role
from ..core.state import RendezvousState
from ..errors import RendezvousError, RendezvousSettingsError, RendezvousTimeoutError
from ..node import check_node_ranks
from ..params import RendezvousParameters
from ..store.base import Store
from ..store.prefix import PrefixStore
from .entropy import Environment
from .executor import Executor
from .info import RendezvousInfo, RendezvousStoreInfo, propose, publish
from .keys import Keys

__all__ = ("enter_round", "is_loopback")


def is_loopback(addr: str) -> bool:
    """Whether an address can only mean this host; nothing is looked up."""
    if addr.lower() == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(addr.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return ip.is_loopback or (mapped is not None and mapped.is_loopback)


async def enter_round(
    executor: Executor,
    store: Store,
    keys: Keys,
    state: RendezvousState,
    env: Environment,
    params: RendezvousParameters,
    by: float,
) -> RendezvousInfo | None:
    """Build a member's snapshot from the state that completed its round.

    Args:
        executor: The member's driver, which goes on reading the state meanwhile.
        store: The run's store.
        keys: The run's keys.
        state: The state with the decision to enter.
        env: Clock.
        params: Options of this node.
        by: Until when rank 0 may take to publish, on this node's clock.

    Returns:
        RendezvousInfo: or None when rank 0 was lost before it published: join again.

    Raises:
        RendezvousSettingsError: the round cannot be ranked, or this node's address is of no use to the others.
        RendezvousConnectionError: rank 0's own address cannot be bound.
        RendezvousTimeoutError: rank 0 published nothing.

    Cancellation:
        The caller withdraws.
    """
    me = executor.me
    members = tuple(state.nodes[inc] for inc in state.participants)
    if state.settings.rank_order == "node_rank" and (wrong := check_node_ranks(members)):
        raise RendezvousSettingsError(f"Round {state.round} of {keys.run_id!r} cannot be ranked by node_rank: {wrong}")
    others = [node for node in members if not is_loopback(node.addr)]
    if is_loopback(me.node.addr) and others:
        raise RendezvousSettingsError(
            f"This node would publish {me.node.addr!r}, which only this host can reach, while {others[0]!r} is on a "
            "network. Set local_addr to an address that the other nodes can reach."
        )
    prefix = keys.round(state.round, state.round_nonce)
    meta = PrefixStore(prefix + "/meta", store)
    rank = state.participants.index(me.inc)
    reservation = None
    if rank == 0:
        mine, reservation = await propose(RendezvousStoreInfo, me.node.addr, params.get_as_int("bootstrap_port", None))
        try:
            bootstrap = await publish(meta, mine)
        except BaseException:
            if reservation is not None:
                reservation.close()
            raise
    else:
        found = await _wait(executor, meta, state, env, by)
        if found is None:
            return None
        bootstrap = found
    return RendezvousInfo(
        store=PrefixStore(prefix + "/user", store),
        rank=rank,
        world_size=len(members),
        bootstrap_store_info=bootstrap,
        participants=members,
        wait_list=tuple(state.nodes[inc] for inc in state.wait_list),
        round=state.round,
        failures=state.failures,
        run_id=keys.run_id,
        reservation=reservation,
    )


async def _wait(
    executor: Executor, meta: Store, state: RendezvousState, env: Environment, by: float
) -> RendezvousStoreInfo | None:
    """Wait for rank 0's address, or for the news that it will never come."""
    first, me = state.participants[0], executor.me.inc
    found: list[RendezvousStoreInfo] = []
    problems: list[RendezvousError] = []

    def closed() -> bool:
        return executor.state is not None and executor.state.is_closed

    def over() -> bool:
        now = executor.state
        if now is None or now.round_nonce != state.round_nonce or first in now.gone or me in now.gone:
            return True
        # Closing takes a completed round from nobody (D46).
        return executor.role is not Role.MEMBER and not closed()

    async def take(answer: Awaitable[bytes | None]) -> None:
        try:
            if (value := await answer) is not None:
                found.append(RendezvousStoreInfo.decode(value))
        except RendezvousError as exc:
            problems.append(exc)

    async def read() -> None:
        await take(meta.watch("bootstrap", None))
        tg.cancel_scope.cancel()

    with anyio.move_on_at(env.deadline(max(by, env.now() + 1.0))) as scope:
        async with anyio.create_task_group() as tg:
            tg.start_soon(read)
            while not over() and not closed():
                await executor.news()
            if closed() and not over():
                # Nobody watches rank 0 any more. If it lives, its address is there in no time.
                scope.deadline = min(scope.deadline, env.deadline(env.now() + state.settings.expiry))
                await anyio.sleep_forever()
            # Rank 0 may have gone after it had published: then the round is received like any other (D8).
            await take(meta.peek("bootstrap"))
            tg.cancel_scope.cancel()
    if found:
        return found[0]
    if problems:
        raise problems[0]
    if over() or closed():
        return None
    raise RendezvousTimeoutError(
        f"Round {state.round} of {executor.keys.run_id!r} is complete, but its rank 0, {state.name(first)}, published "
        "no bootstrap address before the join time-out ended."
    )
