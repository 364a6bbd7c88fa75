"""How a worker died, told to the other nodes of its round: their operators look at their own terminals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from .logs import fit_lines

if TYPE_CHECKING:
    from ..handler.info import RendezvousInfo
    from ..handler.rounds import Round
    from .workers import WorkerExit

__all__ = ("Obituary", "publish", "read_all", "shown")

#: Key, in the round's store, followed by the rank of the node.
_DIED: Final = "agent/died/"
#: Most of them that one node shows: after a collective breaks, every node has one.
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Obituary:
    """A worker's end.

    Attributes:
        who: Who and how, such as ``worker 0 (rank 3, pid 77) exited with status 1``.
        lines: The last lines that it wrote.
        final: Its node leaves for good: there are no restarts left.
    """

    who: str
    lines: tuple[str, ...]
    final: bool = False

    @classmethod
    def of(cls, end: WorkerExit, *, final: bool = False) -> Obituary:
        """From what the supervisor said."""
        return cls(str(end), end.lines, final)

    def tell(self, where: str) -> Iterator[str]:
        """Lines for people; none if the worker wrote none.

        Args:
            where: Which round and node it was.
        """
        if self.lines:
            yield f"{where}: {self.who}; it last wrote:"
            yield from (f"  | {line}" for line in self.lines)


async def publish(world: Round | RendezvousInfo, obituary: Obituary) -> None:
    """Leave it in the round's store, for those who read it when the round ends.

    Raises:
        RendezvousConnectionError: the store cannot be reached.
    """
    await world.store.set(f"{_DIED}{world.rank}", msgspec.json.encode(obituary))


async def read_all(world: Round | RendezvousInfo) -> dict[int, Obituary]:
    """What the nodes of an ended round left, by rank and in order of ranks, this node's own included.

    Raises:
        RendezvousConnectionError: the store cannot be reached.
    """
    found: dict[int, Obituary] = {}
    for key, value in await world.store.scan(_DIED):
        rank = key.removeprefix(_DIED)
        if not rank.isdecimal() or int(rank) >= world.world_size:
            continue
        try:
            told = msgspec.json.decode(value, type=Obituary)
        except msgspec.DecodeError:
            continue  # workers have the same store: somebody else wrote there
        (who,) = fit_lines([told.who]) or ("a worker",)
        found[int(rank)] = Obituary(who, fit_lines(told.lines), told.final)
    return dict(sorted(found.items()))


def shown(found: Mapping[int, Obituary], own_rank: int) -> list[tuple[int, Obituary]]:
    """Those that are worth showing beside this node's own: the first few."""
    return [(rank, told) for rank, told in found.items() if rank != own_rank][:_SHOWN]
