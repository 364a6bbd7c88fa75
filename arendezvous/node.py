"""Who a node is, and the orders in which the nodes of a round are ranked.

A node is ``(addr, pid, local_id)`` and a random incarnation, so that a restarted process is a new node (defects.md
D14). Everything here is a pure function of its arguments: each member ranks the same nodes in the same way.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .text import LISTED, listed

__all__ = ("RANK_ORDERS", "Attributes", "NodeDesc", "check_node_ranks", "order_nodes", "sort_key")

_NUMBERS = re.compile(r"([0-9]+)")


class Attributes(Mapping[str, str | int | float | bool]):
    """An immutable, hashable, picklable mapping: what a node says about itself.

    Args:
        items: Pairs, or a mapping; the order is kept.
    """

    __slots__ = ("_pairs",)

    def __init__(
        self, items: Mapping[str, str | int | float | bool] | Iterable[tuple[str, str | int | float | bool]] = ()
    ) -> None:
        # A handful of pairs is smaller than a dict and found about as fast; a state may list thousands of nodes.
        self._pairs = tuple(dict(items).items())

    def __getitem__(self, key: str) -> str | int | float | bool:
        for name, value in self._pairs:
            if name == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        # As Mapping's equality, regardless of order.
        return hash(frozenset(self._pairs))

    def __reduce__(self) -> tuple[type[Attributes], tuple[tuple[tuple[str, str | int | float | bool], ...]]]:
        return type(self), (self._pairs,)

    def __repr__(self) -> str:
        return repr(dict(self._pairs))


_NONE = Attributes()


@dataclass(frozen=True, slots=True, order=True, repr=False)
class NodeDesc:
    """One node; compared, ordered and hashed by address, process, local number and incarnation.

    Args:
        addr: The address that the other nodes know it by.
        pid: Its process.
        local_id: Tells apart the nodes of one process.
        incarnation: Random bytes, new with each start.
        node_rank: The rank that its user asked for, if any.
        local_world_size: How many workers it runs.
        attributes: What it says about itself; copied, read-only.
    """

    addr: str
    pid: int
    local_id: int
    incarnation: bytes = b""
    node_rank: int | None = field(default=None, compare=False)
    local_world_size: int = field(default=1, compare=False)
    attributes: Mapping[str, str | int | float | bool] = field(default=_NONE, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.attributes, Attributes):
            object.__setattr__(self, "attributes", Attributes(self.attributes) if self.attributes else _NONE)

    def __repr__(self) -> str:
        return f"{self.addr}_{self.pid}_{self.local_id}"

    @property
    def triple(self) -> tuple[str, int, int]:
        """Address, process and local number: equal for two incarnations of one place."""
        return (self.addr, self.pid, self.local_id)


def _by_address(node: NodeDesc) -> tuple[Any, ...]:
    return (node.addr, node.pid, node.local_id, node.incarnation)


def _naturally(node: NodeDesc) -> tuple[Any, ...]:
    # The exact text comes last, so that "node02" and "node2" have an order too.
    return (_natural_address(node.addr), *_by_address(node))


def _natural_address(addr: str) -> tuple[Any, ...]:
    # Asked first because a name costs the parser an exception, ten times what the rest takes.
    if ":" in addr or addr.replace(".", "").isdigit():
        try:
            ip = ipaddress.ip_address(addr)
        except ValueError:
            pass
        else:
            return (0, ip.version, ip.packed, getattr(ip, "scope_id", None) or "")
    # Odd places are numbers and even places text, so that only like is compared with like. A number is compared by
    # length and text: the same order as its value, without converting digits by the thousand.
    parts = _NUMBERS.split(addr)
    parts[1::2] = [digits.lstrip("0") for digits in parts[1::2]]
    return (1, *((len(part), part) if place % 2 else part for place, part in enumerate(parts)))


def _by_node_rank(node: NodeDesc) -> tuple[Any, ...]:
    return (1, 0) if node.node_rank is None else (0, node.node_rank)


def _as_given(node: NodeDesc) -> tuple[Any, ...]:
    return ()


_KEYS: Mapping[str, Callable[[NodeDesc], tuple[Any, ...]]] = {
    "address": _by_address,
    "natural": _naturally,
    "node_rank": _by_node_rank,
    "stable": _as_given,
}

#: The names that ``order_nodes`` knows.
RANK_ORDERS = tuple(_KEYS)


def sort_key(rank_order: str) -> Callable[[NodeDesc], tuple[Any, ...]]:
    """The key by which ``sorted`` puts nodes into a rank order.

    Args:
        rank_order: ``address`` sorts the descriptors; ``natural`` likewise, but numbers by value (node2 before node10,
            10.0.0.9 before 10.0.0.10); ``node_rank`` follows what the nodes asked for, those without a wish last;
            ``stable`` leaves the order alone.

    Raises:
        ValueError: there is no such order.
    """
    try:
        return _KEYS[rank_order]
    except KeyError:
        raise ValueError(f"There is no rank order {rank_order!r}; it is one of {', '.join(_KEYS)}.") from None


def order_nodes(nodes: Sequence[NodeDesc], rank_order: str) -> list[NodeDesc]:
    """Nodes in the order of their ranks; those that the order does not tell apart stay as they were.

    Args:
        nodes: The members of a round.
        rank_order: As in ``sort_key``.

    Raises:
        ValueError: there is no such order.
    """
    return sorted(nodes, key=sort_key(rank_order))


def check_node_ranks(nodes: Sequence[NodeDesc]) -> str | None:
    """Whether the nodes' own ``node_rank`` values can be the ranks of a round: 0 to n-1, each once.

    Args:
        nodes: The members of a round.

    Returns:
        None if they can, else a sentence that names who gave no rank, which are taken twice, missing or too large.
    """
    size = len(nodes)
    owners: dict[int, list[NodeDesc]] = {}
    silent: list[str] = []
    for node in nodes:
        if node.node_rank is None:
            silent.append(repr(node))
        else:
            owners.setdefault(node.node_rank, []).append(node)

    faults: list[str] = []
    if silent:
        faults.append(f"{listed(silent)} gave no node_rank")
    faults += _some(
        [
            f"node_rank {rank} is claimed by {listed([repr(node) for node in claimants])}"
            for rank, claimants in sorted(owners.items())
            if len(claimants) > 1
        ]
    )
    # With a rank out of range another one is missing, and both are worth saying.
    faults += _some(
        [
            f"node_rank {rank} of {owners[rank][0]!r} is not below the {size} nodes of the round"
            for rank in sorted(owners)
            if not 0 <= rank < size
        ]
    )
    missing = [str(rank) for rank in range(size) if rank not in owners]
    if missing:
        faults.append(f"nobody has node_rank {listed(missing)}")
    return "; ".join(faults) if faults else None


def _some(faults: list[str]) -> list[str]:
    return faults if len(faults) <= LISTED else [*faults[:LISTED], f"{len(faults) - LISTED} more like it"]
