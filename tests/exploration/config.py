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

#: Faults that the common budget does not count.
FREE = frozenset({"restart", "again", "finish"})
#: Faults that have limits of their own. ``flight`` is the message that a crash, a cancellation or a lost connection
#: leaves behind; ``loss`` empties the store.
LIMITED = (
    "crash",
    "restart",
    "cancel",
    "false",
    "spontaneous",
    "suspend",
    "close",
    "flight",
    "again",
    "finish",
    "loss",
)

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
    "loss": 0,
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
        misfits: Nodes that were started with other settings.
        relocate: A restarted node has another process number, as most have; off is the harder case.
        notify_lost: Members are told of lost members.
        tombstone_limit: Tombstones kept in one generation.
        curious: A node may read announcements at any time, not only when it has a reason to.
        symmetry: Explore only one of the states that differ in nothing but which node is which.
    """

    nodes: int
    min_nodes: int
    max_nodes: int
    faults: int
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    off: frozenset[str] = frozenset()
    places: tuple[int, ...] = ()
    misfits: tuple[int, ...] = ()
    relocate: bool = False
    notify_lost: bool = True
    tombstone_limit: int = 4096
    curious: bool = True
    symmetry: bool = True

    def __post_init__(self) -> None:
        if unknown := set(self.off) - CORE_RULES - ENVIRONMENT_RULES.keys():
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

    def place(self, node: int, *, restarted: bool = False) -> int:
        """Where a node runs."""
        place = self.places[node] if self.places else node
        return place + 100 if restarted and self.relocate else place

    def __str__(self) -> str:
        limits = " ".join(f"{kind}={count}" for kind, count in self.limit.items() if count)
        text = f"{self.nodes} nodes ({self.min_nodes},{self.max_nodes}) {self.faults} faults [{limits}]"
        if self.off:
            text += f" without {', '.join(sorted(self.off))}"
        if self.places:
            text += f" places {self.places}"
        if self.misfits:
            text += f" misfits {self.misfits}"
        for name, on in (
            ("relocate", self.relocate),
            ("plain", not self.curious),
            ("told of no loss", not self.notify_lost),
        ):
            text += f" {name}" * on
        if self.tombstone_limit != 4096:
            text += f" tombstones {self.tombstone_limit}"
        return text
