"""What is explored: how many nodes, which faults, which rules are off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arendezvous.core.fold import ALL_RULES
from arendezvous.core.ops import DECISION_RULES

__all__ = ("CORE_RULES", "ENVIRONMENT_RULES", "FREE", "LIMITED", "Config")

#: Rules that the core itself can switch off.
CORE_RULES = ALL_RULES | DECISION_RULES

#: Rules that live outside of the core: what a handler or a store does. Off means the naive way.
ENVIRONMENT_RULES = {
    "order": "the state is read before the announcements",
    "nonce": "a swap compares a fresh nonce, not only the content",
    "timer": "a node re-reads on a timer, not only when it is woken",
    "notice": "the swap itself is the notice; off: a notice is sent after it",
    "watch": "everybody listed watches and is watched; off: live members of a complete round watch each other",
    "watch_unlisted": "a node that is not listed yet watches too",
    "frozen": "the world is the frozen roster; off: the live members",
    "view": "seats are counted from the live members; off: from all participants",
    "hold_both": "twins are admitted when both were seen to beat; off: when the listed one was",
    "hold_pair": "twins are admitted when both beat after the pair was seen; off: when both beat at any time",
    "wait_for_silence": "a newcomer does not replace its listed twin at once",
    "keys": "one key per announcement; off: one key per node, overwritten",
    "no_deletion": "announcements are not deleted one by one; off (with keys off): a folder deletes what it folded",
    "announce_first": "a node announces in a generation before it folds in it",
    "gen_ack": "only a folded LEAVE is an acknowledgement; off: a generation newer than the LEAVE is one too",
    "finished_watch": "a member that has finished goes on watching",
    "finished_stay_out": "a member that has finished never joins again with the same incarnation",
}

#: Faults that have limits of their own besides the common budget; ``restart``, ``again``, ``finish`` and ``flight``
#: are not counted by the common budget.
FREE = frozenset({"restart", "again", "finish"})
LIMITED = ("crash", "restart", "cancel", "false", "spontaneous", "suspend", "close", "flight", "again", "finish")

_DEFAULTS = {
    "crash": 1,
    "restart": 1,
    "cancel": 1,
    "false": 1,
    "spontaneous": 1,
    "suspend": 0,
    "close": 0,
    "flight": 0,
    "again": 0,
    "finish": 0,
}


@dataclass(frozen=True)
class Config:
    """One exploration.

    Attributes:
        nodes: How many.
        min_nodes: The minimum of the agreed settings.
        max_nodes: The maximum.
        faults: The common budget.
        limits: Per kind of fault, besides the budget; see ``LIMITED``.
        off: Names of rules that are off.
        places: Which place (address, process, local number) each node runs at; equal ones are twins.
        notify_lost: Members are told of lost members.
        tombstone_limit: Tombstones kept in one generation.
        curious: A node may read announcements at any time, not only when it has a reason to.
    """

    nodes: int
    min_nodes: int
    max_nodes: int
    faults: int
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    off: frozenset[str] = frozenset()
    places: tuple[int, ...] = ()
    notify_lost: bool = True
    tombstone_limit: int = 4096
    curious: bool = True

    def __post_init__(self) -> None:
        unknown = self.off - CORE_RULES - ENVIRONMENT_RULES.keys()
        if unknown:
            raise ValueError(f"no such rule: {', '.join(sorted(unknown))}")
        if unknown := set(self.limits) - set(LIMITED):
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")

    @property
    def limit(self) -> dict[str, int]:
        """The limit of each kind of fault."""
        return {**_DEFAULTS, **self.limits}

    @property
    def rules(self) -> frozenset[str]:
        """The core's rules in force."""
        return CORE_RULES - self.off

    def place(self, node: int) -> int:
        """Where a node runs."""
        return self.places[node] if self.places else node

    def __str__(self) -> str:
        limits = " ".join(f"{kind}={count}" for kind, count in self.limit.items() if count)
        text = f"{self.nodes} nodes ({self.min_nodes},{self.max_nodes}) {self.faults} faults [{limits}]"
        if self.off:
            text += f" without {', '.join(sorted(self.off))}"
        if self.places:
            text += f" places {self.places}"
        if not self.notify_lost:
            text += " notify_lost off"
        if self.tombstone_limit != 4096:
            text += f" tombstones {self.tombstone_limit}"
        return text
