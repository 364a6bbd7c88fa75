"""What must hold in a simulation: of each state written, of what is handed to a node, and of the rest at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import anyio

from ..core.codec import decode_state
from ..core.ops import Role
from ..core.state import RendezvousState, invariants
from ..errors import RendezvousStateError
from ..store.table import Table
from .simplan import CALM

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..handler.info import RendezvousInfo
    from .simnode import Life
    from .simplan import Plan

__all__ = ("Checker", "WatchedTable")

#: Bytes that stand before the state under its key: the token.
_HEADER = 16
#: No plan needs that many states.
_FLOOD = 1000


class WatchedTable(Table):
    """A table that shows each change to somebody."""

    def __init__(
        self, see: Callable[[bytes, bytes], None], *, grace: float, max_value: int = 2**40, root: bytes = b""
    ) -> None:
        super().__init__(grace=grace, max_value=max_value, root=root)
        self._see = see

    def _write(self, key: bytes, value: bytes, lease: Hashable | None) -> None:
        self._see(key, value)
        super()._write(key, value, lease)


class Checker:
    """Watches a simulation.

    Args:
        plan: What was to happen.
        lives: Every process so far, dead or alive; grows.

    Attributes:
        log: What happened, one line each.
        violations: What should not have.
        state: The agreed state as stored now.
        quiet_since: When something else than a heartbeat was last written.
        writes: How many states were written.
        rounds: How many rounds were completed.
        ambush: Called with the living members of each round that was completed.
        flood: Set when so many states were written that this will never end.
    """

    def __init__(self, plan: Plan, lives: list[Life]) -> None:
        self.plan, self._lives = plan, lives
        self.log: list[str] = []
        self.violations: list[str] = []
        self.state: RendezvousState | None = None
        self.quiet_since = 0.0
        self.writes = 0
        self.rounds = 0
        self.ambush: Callable[[list[Life]], None] = lambda lives: None
        self.flood = anyio.Event()
        # Of this history: the store may be lost, and the next one counts on from what its first nodes remember.
        self._completed_here: set[int] = set()
        self._worlds: dict[int, list[tuple[bytes, ...]]] = {}
        self._handed: dict[tuple[bytes, ...], dict[int, str]] = {}
        self._common: dict[tuple[bytes, ...], object] = {}
        self._last_round: dict[int | str, int] = {}
        self._names: dict[bytes, str] = {}
        self._owners: dict[bytes, Life] = {}
        # Incarnations whose withdrawal was acknowledged, and when.
        self._withdrawn: dict[bytes, float] = {}

    # ---- writing ----------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Add a line to the log."""
        self.log.append(f"{anyio.current_time():11.6f} {text}")

    def violation(self, text: str) -> None:
        """Something that must not happen has."""
        self.note(f"VIOLATION {text}")
        self.violations.append(f"at {anyio.current_time():.6f}: {text}")

    def name(self, inc: bytes) -> str:
        """What the log calls an incarnation."""
        return self._names.get(inc) or f"?{inc.hex()[:6]}"

    def names(self, incs: Iterable[bytes]) -> str:
        """Several of them."""
        return ",".join(map(self.name, incs)) or "-"

    def met(self, life: Life, inc: bytes) -> None:
        """A process has an incarnation."""
        if inc not in self._names:
            self._names[inc] = life.name + "'" * len(life.incs)
            life.incs.append(inc)
            self._owners[inc] = life

    # ---- every write ------------------------------------------------------------------------------------------

    def see(self, key: bytes, value: bytes) -> None:
        """The store is about to write ``value``."""
        if b"/hb/" in key:
            return
        self.quiet_since = anyio.current_time()
        if not key.endswith(b"/state"):
            return
        try:
            state = decode_state(value[_HEADER:])
        except RendezvousStateError as exc:
            self.violation(f"a state was written that nobody can read: {exc}")
            return
        before, self.state = self.state, state
        self.writes += 1
        if self.writes == _FLOOD:
            self.violation(f"{_FLOOD} states were written, the last one of round {state.round}")
            self.flood.set()
        gone = ",".join(f"{self.name(inc)}:{state.gone[inc].value}" for inc in sorted(state.gone, key=self.name))
        self.note(
            f"state {state.nonce.hex()[:4]} round {state.round}{'!' if state.complete else ''} gen {state.gen} "
            f"in {self.names(state.participants)} queue {self.names(state.queue)}"
            f"{f' gone {gone}' if gone else ''}"
            f"{f' finished {self.names(sorted(state.finished, key=self.name))}' if state.finished else ''}"
            f"{f' {state.closed.value}' if state.is_closed else ''}"
        )
        for sentence in invariants(state, before):
            self.violation(f"invariant: {sentence}")
        if before is not None and before.epoch != state.epoch:
            self.violation("the history was replaced by another one")
        if state.complete and (before is None or not before.complete or before.round_nonce != state.round_nonce):
            self._completed(state)

    def _completed(self, state: RendezvousState) -> None:
        self.rounds += 1
        if state.round in self._completed_here:
            self.violation(f"round {state.round} was completed twice")
        self._completed_here.add(state.round)
        self._worlds.setdefault(state.round, []).append((state.round_nonce, *state.participants))
        if not self.plan.min_nodes <= len(state.participants) <= self.plan.max_nodes:
            self.violation(f"round {state.round} was completed with {len(state.participants)} nodes")
        for inc in state.participants:
            if inc in self._withdrawn:
                self.violation(
                    f"{self.name(inc)} is in round {state.round}, although its withdrawal was acknowledged at "
                    f"{self._withdrawn[inc]:.6f}"
                )

        for inc in state.participants:
            for other in state.participants:
                ghost, successor = self._owners.get(inc), self._owners.get(other)
                if ghost is None or successor is None or state.nodes[inc].triple != state.nodes[other].triple:
                    continue
                if ghost.dead and ghost.ended < successor.started:
                    self.violation(f"round {state.round} ranks {ghost.name}, which is dead, with its successor")

        members = [self._owners[inc] for inc in state.participants if inc in self._owners]
        self.ambush([life for life in members if not life.dead and not life.over])

    def store_lost(self) -> None:
        """The store is gone with all it held."""
        self.note("the store is lost")
        self.state = None
        self._completed_here.clear()
        self._last_round = {who: number for who, number in self._last_round.items() if isinstance(who, str)}
        self.quiet_since = anyio.current_time()

    # ---- what nodes are told ----------------------------------------------------------------------------------

    def withdrew(self, inc: bytes) -> None:
        """A node read the acknowledgement of its withdrawal."""
        self._withdrawn[inc] = anyio.current_time()
        if self.state is not None and not self.state.is_closed and self.state.listed(inc):
            self.violation(f"{self.name(inc)} was told that it has withdrawn, and is listed")

    def wants(self, inc: bytes) -> None:
        """A node wants in again, so its withdrawal is history."""
        self._withdrawn.pop(inc, None)

    def given(self, life: Life, info: RendezvousInfo, inc: bytes) -> None:
        """A node was handed a round."""
        number = info.round
        self.note(f"{life.name} has round {number} rank {info.rank}/{info.world_size}")
        incs = tuple(node.incarnation for node in info.participants)
        key = next((key for key in self._worlds.get(number, []) if key[1:] == incs), None)
        if key is None:
            known = " or ".join(self.names(key[1:]) for key in self._worlds.get(number, []))
            self.violation(f"{life.name} sees round {number} as {self.names(incs)}, it is {known or 'not complete'}")
            return
        if info.world_size != len(incs) or not 0 <= info.rank < len(incs) or incs[info.rank] != inc:
            self.violation(f"{life.name} has rank {info.rank} of {info.world_size} in {self.names(incs)}")
        owners = self._handed.setdefault(key, {})
        if (other := owners.setdefault(info.rank, life.name)) != life.name:
            self.violation(f"rank {info.rank} of round {number} was handed to {other} and to {life.name}")
        common = (info.bootstrap_store_info, info.failures, info.world_size)
        if self._common.setdefault(key, common) != common:
            self.violation(f"{life.name} got {common} in round {number}, another one {self._common[key]}")
        # A process remembers over a lost store, a new one of its node cannot.
        last = max(self._last_round.get(life.plan.index, -1), self._last_round.get(life.name, -1))
        if number <= last:
            self.violation(f"{life.name} was handed round {number} after {last}")
        self._last_round[life.plan.index] = self._last_round[life.name] = number

    def remains(self) -> list[str]:
        """Who is listed although it has ended in its own way, in the calm."""
        if self.state is None or self.state.is_closed:
            return []
        ended = {inc for life in self._lives if life.over and life.ended > CALM + 1.0 for inc in life.incs}
        return [self.name(inc) for inc in self.state.ring if inc in ended]

    # ---- the rest ---------------------------------------------------------------------------------------------

    def unrest(self) -> list[str]:
        """Why the simulation has not come to rest; empty when it has."""
        found: list[str] = []
        state, listed = self.state, set()
        for life in self._lives:
            if life.dead or life.over:
                continue
            executor = life.executor
            if executor is None or executor.role is None:
                found.append(f"{life.name} ({life.phase}) is in nothing and waits for nothing: a silent orphan")
                continue
            me = executor.me
            listed.add(me.inc)
            if executor.state is None or state is None or executor.state.nonce != state.nonce:
                found.append(f"{life.name} ({life.phase}) does not know the state that is stored")
                continue
            live = state.complete and me.inc in state.live
            if executor.role in (Role.MEMBER, Role.FINISHED):
                if not live or me.round_nonce != state.round_nonce or life.round != state.round:
                    found.append(f"{life.name} holds round {life.round} and is no live member of round {state.round}")
            elif executor.role is Role.JOINING:
                if not state.listed(me.inc):
                    found.append(f"{life.name} waits and is not listed")
                elif live:
                    found.append(f"{life.name} is a member of round {state.round} and does not enter it")
            else:
                found.append(f"{life.name} is leaving")
        if state is None:
            return found
        strangers = [inc for inc in state.ring if inc not in listed]
        if strangers and listed and not state.is_closed:  # the last ones to die are buried by nobody
            found.append(f"listed and not alive: {self.names(strangers)}")
        if state.is_closed and listed:
            found.append(f"the run is {state.closed.value} and somebody goes on: {self.names(sorted(listed))}")
        if not state.is_closed and listed:
            if not state.complete:
                found.append(f"round {state.round} is not complete: {self.names(state.participants)}")
            elif state.owed and self.plan.notify_lost:
                found.append(f"round {state.round} goes on without {self.names(state.owed)}")
            elif state.wait_list and not state.finished:
                found.append(f"there are seats for {self.names(state.wait_list)}, and nobody makes room")
        return found
