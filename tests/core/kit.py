"""Builders shared by the tests of the core: short names for nodes, announcements and states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from arendezvous.core.fold import TOMBSTONE_LIMIT, Evidence, Fresh, create, fold
from arendezvous.core.state import AgreedSettings, Kind, Record, RendezvousState, invariants
from arendezvous.node import NodeDesc

EPOCH = b"e" * 16


def inc(name: str) -> bytes:
    """The incarnation of the node called ``name``: readable in a failure's diff."""
    return name.encode().ljust(16, b".")


def node(name: str, *, place: str | None = None, **more: Any) -> NodeDesc:
    """The node called ``name``; two names of one ``place`` have the same address, process and local number."""
    return NodeDesc(place or name, 1, 0, inc(name), **more)


def settings(low: int = 1, high: int = 2, **more: Any) -> AgreedSettings:
    return AgreedSettings(low, high, **more)


def join(
    name: str, seq: int = 1, agreed: AgreedSettings | None = None, *, place: str | None = None, **more: Any
) -> Record:
    return Record(inc(name), seq, Kind.JOIN, node(name, place=place), agreed or settings(), **more)


def leave(name: str, seq: int = 2, *, finished: bytes = b"") -> Record:
    return Record(inc(name), seq, Kind.LEAVE, round_nonce=finished)


def finish(name: str, round_nonce: bytes, seq: int = 2) -> Record:
    return Record(inc(name), seq, Kind.FINISH, round_nonce=round_nonce)


def closing(name: str, seq: int = 2) -> Record:
    return Record(inc(name), seq, Kind.CLOSE)


def incs(names: str) -> tuple[bytes, ...]:
    """``"a b"`` as incarnations."""
    return tuple(inc(name) for name in names.split())


def spell(who: Iterable[bytes]) -> str:
    """Incarnations as ``"a b"``."""
    return " ".join(one.rstrip(b".").decode() for one in who)


class Nonces:
    """Fresh bytes without randomness: a counter."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Fresh:
        self.count += 1
        return Fresh(b"n%015d" % self.count, b"r%015d" % self.count)


@dataclass
class Run:
    """A run id whose only folder is the test: each step is checked against the invariants."""

    low: int = 1
    high: int = 2
    more: dict[str, Any] = field(default_factory=dict)
    state: RendezvousState = field(init=False)
    nonces: Nonces = field(default_factory=Nonces)

    def __post_init__(self) -> None:
        self.agreed = settings(self.low, self.high, **self.more)

    def join(self, name: str, seq: int = 1, **more: Any) -> Record:
        return join(name, seq, self.agreed, **more)

    def begin(self, *names: str) -> Run:
        """The first of ``names`` creates the state, the others join in one fold."""
        self.state = create(self.join(names[0]), epoch=EPOCH, fresh=self.nonces())
        assert not invariants(self.state)
        if names[1:]:
            self.step(*map(self.join, names[1:]))
        return self

    def step(
        self,
        *records: Record,
        suspects: str = "",
        proven: str = "",
        shaky: str = "",
        over: bool = False,
        tombstone_limit: int = TOMBSTONE_LIMIT,
    ) -> RendezvousState:
        """Fold, check every invariant, and keep the result."""
        evidence = Evidence(frozenset(incs(suspects)), frozenset(incs(proven)), frozenset(incs(shaky)), over)
        before = self.state
        after = fold(before, records, fresh=self.nonces(), evidence=evidence, tombstone_limit=tombstone_limit)
        assert after is before or not invariants(after, before), invariants(after, before)
        self.state = after
        return after

    def complete(self) -> Run:
        """The last call ends."""
        self.step(over=True)
        assert self.state.complete
        return self

    @property
    def who(self) -> str:
        """Participants, then ``|`` and the queue."""
        return f"{spell(self.state.participants)} | {spell(self.state.queue)}".strip()


def completed(low: int, high: int, *names: str, **more: Any) -> Run:
    """A run whose first round is complete with ``names`` (at most ``high`` of them)."""
    return Run(low, high, more).begin(*names).complete() if len(names) < high else Run(low, high, more).begin(*names)
