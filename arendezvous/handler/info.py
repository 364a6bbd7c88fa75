"""What a member of a round is given: an immutable snapshot, taken with the decision that completed it (D8, D16)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import msgspec

from ..errors import RendezvousStateError, RendezvousTimeoutError
from ..store.ports import reserve_port

if TYPE_CHECKING:
    from ..node import NodeDesc
    from ..store.base import Store
    from ..store.ports import PortReservation

__all__ = ("RendezvousInfo", "RendezvousStoreInfo")

_KEY = "bootstrap"
_Info = TypeVar("_Info", bound="RendezvousStoreInfo")


class RendezvousStoreInfo:
    """Address and port of a round's bootstrap store, published once per round by its rank 0.

    Args:
        master_addr: Rank 0's own address; keyword ``addr`` is an alias.
        port: The port; keyword ``master_port`` is an alias.

    Raises:
        TypeError: an address or a port is missing, or given twice.
    """

    __slots__ = ("_addr", "_port")
    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    def __init__(
        self,
        master_addr: str | None = None,
        port: int | None = None,
        *,
        addr: str | None = None,
        master_port: int | None = None,
    ) -> None:
        if (master_addr is None) == (addr is None):
            raise TypeError("give master_addr (or addr), once")
        if (port is None) == (master_port is None):
            raise TypeError("give port (or master_port), once")
        self._addr: str = master_addr if master_addr is not None else str(addr)
        self._port: int = port if port is not None else int(master_port or 0)

    @property
    def master_addr(self) -> str:
        """Rank 0's address."""
        return self._addr

    @property
    def addr(self) -> str:
        """Alias of :attr:`master_addr`."""
        return self._addr

    @property
    def port(self) -> int:
        """The bootstrap port."""
        return self._port

    @property
    def master_port(self) -> int:
        """Alias of :attr:`port`."""
        return self._port

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RendezvousStoreInfo):
            return NotImplemented
        return (self._addr, self._port) == (other._addr, other._port)

    def __hash__(self) -> int:
        return hash((self._addr, self._port))

    def __repr__(self) -> str:
        return f"RendezvousStoreInfo(master_addr={self._addr!r}, port={self._port})"

    def encode(self) -> bytes:
        """One value, so that nobody reads half of it (D3)."""
        return msgspec.msgpack.encode([1, self._addr, self._port])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what :meth:`encode` wrote.

        Raises:
            RendezvousStateError: the bytes are something else.
        """
        try:
            version, addr, port = msgspec.msgpack.decode(data, type=tuple[int, str, int])
        except (msgspec.MsgspecError, ValueError) as exc:
            raise RendezvousStateError(f"The bootstrap address of the round is damaged: {exc}") from exc
        if version != 1 or not 0 < port < 65536:
            raise RendezvousStateError(f"The bootstrap address of the round is damaged: {addr!r}, port {port}")
        return cls(addr, port)

    @classmethod
    async def build(
        cls,
        rank: int,
        store: Store,
        local_addr: str | None = None,
        server_port: int | None = None,
        *,
        timeout: float = 300.0,
    ) -> Self:
        """Agree on the bootstrap address through a round-scoped store.

        Args:
            rank: This node's rank; rank 0 publishes, the others read.
            store: The store of the round.
            local_addr: Rank 0's address; the host name by default.
            server_port: Rank 0's port; a free one when None or 0 (D56).
            timeout: Seconds that the others wait for rank 0.

        Returns:
            RendezvousStoreInfo: the same on all ranks.

        Raises:
            RendezvousTimeoutError: rank 0 published nothing in time.
            RendezvousConnectionError: the store cannot be reached, or no port of ``local_addr`` can be bound.

        Cancellation:
            Safe: the address may or may not have been published.
        """
        if rank == 0:
            info, reservation = await propose(cls, local_addr or host_name(), server_port)
            try:
                return await publish(store, info)
            finally:
                if reservation is not None:
                    reservation.close()
        with anyio.move_on_after(timeout):
            value = await store.watch(_KEY, None)
            assert value is not None  # it differs from "missing"
            return cls.decode(value)
        raise RendezvousTimeoutError(
            f"Timed out waiting for the bootstrap store address: rank 0 published nothing within {timeout:g} s "
            f"(rank {rank}, store at {store.endpoint})."
        )


def host_name() -> str:
    """This host's name as the kernel knows it; nothing is looked up."""
    return os.uname().nodename


async def propose(kind: type[_Info], addr: str, port: int | None) -> tuple[_Info, PortReservation | None]:
    """Choose rank 0's address; with no port given, reserve a free one."""
    if port:
        return kind(addr, port), None
    reservation = await reserve_port(addr)
    return kind(addr, reservation.port), reservation


async def publish(store: Store, info: _Info) -> _Info:
    """Write the address unless this round already has one, and return the one that counts."""
    _, value = await store.compare_and_swap(_KEY, b"", info.encode())
    return type(info).decode(value)


@dataclass(frozen=True, slots=True)
class RendezvousInfo:
    """This node's place in one round, frozen when the round completed.

    Attributes:
        store: A store of this round alone; its keys are invisible to other rounds.
        rank: In ``[0, world_size)``; the same order on every member.
        world_size: Number of nodes in the round.
        bootstrap_store_info: Rank 0's address and port for this round.
        participants: Every member in rank order.
        wait_list: Who waited for a seat when the round was read.
        round: Number of the round; only grows.
        failures: How many rounds of the run a failure opened; the same on every member.
        run_id: The run.
        reservation: Rank 0: what keeps the bootstrap port until :meth:`release_port`.
    """

    store: Store
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo | None = None
    participants: tuple[NodeDesc, ...] = ()
    wait_list: tuple[NodeDesc, ...] = ()
    round: int = 0
    failures: int = 0
    run_id: str = ""
    reservation: PortReservation | None = field(default=None, repr=False, compare=False)

    def release_port(self) -> None:
        """Rank 0: free the reserved bootstrap port for the worker that will listen on it; idempotent."""
        if self.reservation is not None:
            self.reservation.close()
