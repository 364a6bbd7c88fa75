"""Random announcements and evidence: every step keeps the invariants and equals a second, list-based fold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from arendezvous.core.codec import decode_record, decode_state, encode_record, encode_state
from arendezvous.core.fold import ALL_RULES, Evidence, Fresh, close, create, fold
from arendezvous.core.state import AgreedSettings, Closed, Gone, Kind, Record, RendezvousState, invariants
from arendezvous.node import NodeDesc, order_nodes

from .kit import EPOCH, Nonces, inc, join, settings

NAMES = ("a", "b", "c", "d", "e", "f")
#: Two of the six share a place, so that records are held.
PLACES = {"f": "a"}


def place_of(name: str) -> str:
    return PLACES.get(name, name)


# ---- the second fold: lists, written from the sentences of the protocol -------------------------------------------


@dataclass
class Twin:
    """Protocol.md P5 and the finish rules, the slow and obvious way."""

    old: RendezvousState
    seen: Evidence
    fresh: Fresh
    members: list[bytes] = field(default_factory=list)
    waiting: list[bytes] = field(default_factory=list)
    gone: dict[bytes, Gone] = field(default_factory=dict)
    done: set[bytes] = field(default_factory=set)
    heard: dict[bytes, int] = field(default_factory=dict)
    who: dict[bytes, NodeDesc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        old = self.old
        self.members, self.waiting = list(old.participants), list(old.queue)
        self.gone, self.done, self.heard, self.who = (
            dict(old.gone),
            set(old.finished),
            dict(old.folded),
            dict(old.nodes),
        )
        self.agreed, self.frozen, self.floor = old.settings, old.complete, old.floor

    def live(self) -> list[bytes]:
        return [one for one in self.members if one not in self.gone]

    def listed(self, one: bytes) -> bool:
        return one in self.live() or one in self.waiting

    def drop(self, one: bytes, why: Gone) -> None:
        self.waiting = [other for other in self.waiting if other != one]
        if not self.frozen:
            self.members = [other for other in self.members if other != one]
        elif one in self.live():
            self.gone[one] = why

    def run(self, records: Sequence[Record], limit: int) -> RendezvousState:
        old = self.old
        if old.closed is not Closed.NO:
            return old
        for r in records:
            if r.kind in (Kind.FINISH, Kind.LEAVE) and r.round_nonce and r.seq > self.heard.get(r.inc, 0):
                if self.frozen and r.round_nonce == old.round_nonce and r.inc in self.live():
                    self.done.add(r.inc)
                if r.kind is Kind.FINISH:
                    self.heard[r.inc] = r.seq
        for one in self.seen.suspects:
            self.drop(one, Gone.LOST)
        for r in records:
            if r.seq <= self.heard.get(r.inc, 0):
                continue
            if r.kind is Kind.CLOSE:
                return replace(old, closed=Closed.CLOSED, nonce=self.fresh.nonce)
            if r.kind is Kind.LEAVE:
                self.drop(r.inc, Gone.LEFT)
            elif r.kind is Kind.JOIN:
                if not self.join(r):
                    continue
                if self.listed(r.inc):
                    self.floor = max(self.floor, r.last_round + 1)
            self.heard[r.inc] = r.seq
        return self.settle(limit)

    def join(self, r: Record) -> bool:
        assert r.node is not None
        assert r.settings is not None
        if not self.frozen and not self.members and not self.waiting:
            self.agreed = r.settings
        if r.settings != self.agreed or r.inc in self.done:
            return True
        for other in [] if self.listed(r.inc) else [*self.live(), *self.waiting]:
            same = other != r.inc and self.who[other].triple == r.node.triple
            if same and not (other in self.seen.proven and r.inc in self.seen.proven):
                return False
        if self.frozen and r.inc in self.live():
            self.gone[r.inc] = Gone.FAILED if r.failed else Gone.REJOIN
        if not self.listed(r.inc):
            self.who[r.inc] = r.node
            if not self.frozen and len(self.members) < self.agreed.max_nodes:
                self.members.append(r.inc)
            else:
                self.waiting.append(r.inc)
        return True

    def settle(self, limit: int) -> RendezvousState:
        old, most = self.old, self.agreed.max_nodes
        number, nonce, gen, failures = old.round, old.round_nonce, old.gen, old.failures
        closed, complete = Closed.NO, self.frozen
        forget = len(old.folded) - len(old.nodes) > limit
        if complete and self.done and all(one in self.done for one in self.members):
            closed = Closed.DONE
        elif complete and all(one in self.done for one in self.live()):
            if Gone.FAILED in self.gone.values():
                failures += 1
            order = [one for one in self.members if one in self.waiting]
            order += [one for one in self.waiting if one not in self.members]
            number, nonce, complete, forget = max(number + 1, self.floor), self.fresh.round_nonce, False, True
            self.members, self.waiting, self.gone, self.done = order[:most], order[most:], {}, set()
        if complete:
            returning = [one for one in self.waiting if one in self.members]
            self.waiting = returning + [one for one in self.waiting if one not in self.members]
        else:
            number = max(number, self.floor)
            while self.waiting and len(self.members) < most:
                self.members.append(self.waiting.pop(0))
            enough = len(self.members) >= most
            enough = enough or (self.seen.last_call_over and len(self.members) >= self.agreed.min_nodes)
            if enough and not any(one in self.seen.shaky or one in self.seen.suspects for one in self.members):
                complete = True
                ranked = order_nodes([self.who[one] for one in self.members], self.agreed.rank_order)
                self.members = [one.incarnation for one in ranked]
        listed = {*self.members, *self.waiting}
        heard = self.heard
        if forget:
            gen += 1
            heard = {one: seq for one, seq in heard.items() if one in listed or seq != old.folded.get(one)}
        after = RendezvousState(
            self.agreed,
            old.epoch,
            self.fresh.nonce,
            nonce,
            closed,
            gen,
            number,
            complete,
            tuple(self.members),
            self.gone,
            frozenset(self.done),
            tuple(self.waiting),
            {one: node for one, node in self.who.items() if one in listed},
            heard,
            failures,
            max(self.floor, number),
        )
        # A new generation is no reason to write; everything else that differs is.
        plain = replace(after, nonce=old.nonce, floor=old.floor)
        if gen != old.gen and nonce == old.round_nonce:
            plain = replace(plain, gen=old.gen, folded=self.heard)
        return old if plain == old else after


# ---- random input -----------------------------------------------------------------------------------------------


def random_record(rng: random.Random, state: RendezvousState, agreed: AgreedSettings) -> Record:
    name = rng.choice(NAMES)
    seq = max(1, state.sequence(inc(name)) + rng.choice((-1, 0, 1, 1, 1, 1, 2)))
    nonce = rng.choice((state.round_nonce, state.round_nonce, b"o" * 16, b""))
    kind = rng.choices((Kind.JOIN, Kind.LEAVE, Kind.FINISH, Kind.CLOSE), (12, 4, 3, 0.1))[0]
    if kind is Kind.JOIN:
        wanted = agreed if rng.random() < 0.95 else settings(1, 9)
        return join(
            name,
            seq,
            wanted,
            place=place_of(name),
            last_round=rng.choice((-1, -1, state.round, state.round + 2)),
            failed=rng.random() < 0.3,
        )
    return Record(inc(name), seq, kind, round_nonce=nonce if kind in (Kind.LEAVE, Kind.FINISH) else b"")


def random_evidence(rng: random.Random) -> Evidence:
    def some(chance: float) -> frozenset[bytes]:
        return frozenset(inc(name) for name in NAMES if rng.random() < chance)

    return Evidence(some(0.06), some(0.5), some(0.1), rng.random() < 0.3)


def random_settings(rng: random.Random) -> AgreedSettings:
    low = rng.randint(1, 3)
    return settings(low, rng.randint(low, 4), rank_order=rng.choice(("address", "stable", "natural")))


@pytest.mark.parametrize("seed", range(40))
def test_random_folds_keep_every_invariant_and_equal_the_list_based_fold(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    nonces = Nonces()
    for _ in range(6):
        agreed = random_settings(rng)
        state = create(join("a", 1, agreed), epoch=EPOCH, fresh=nonces())
        assert invariants(state) == []
        for step in range(60):
            news = [random_record(rng, state, agreed) for _ in range(rng.randint(0, 4))]
            seen, fresh, limit = random_evidence(rng), nonces(), rng.choice((0, 2, 4096))
            after = fold(state, news, fresh=fresh, evidence=seen, tombstone_limit=limit)
            told = f"seed {seed}, step {step}"
            assert after == Twin(state, seen, fresh).run(news, limit), told
            assert (after is state) == (after == state), told
            if after is state:
                continue
            assert invariants(after, state) == [], told
            assert decode_state(encode_state(after)) == after, told
            assert all(decode_record(encode_record(record)) == record for record in news), told
            state = after


@pytest.mark.parametrize("off", sorted(ALL_RULES))
def test_the_comparison_notices_each_rule_that_is_switched_off(off: str) -> None:
    nonces = Nonces()
    for seed in range(200):
        rng = random.Random(seed)
        agreed = random_settings(rng)
        state = create(join("a", 1, agreed), epoch=EPOCH, fresh=nonces())
        for _ in range(60):
            news = [random_record(rng, state, agreed) for _ in range(rng.randint(0, 4))]
            seen, fresh = random_evidence(rng), nonces()
            right = Twin(state, seen, fresh).run(news, 4096)
            if fold(state, news, fresh=fresh, evidence=seen, rules=ALL_RULES - {off}) != right:
                return
            state = right
    raise AssertionError(f"nothing changed without the rule {off!r}")


@pytest.mark.parametrize("seed", range(20))
def test_folding_the_same_again_changes_nothing(seed: int) -> None:
    """A lost answer costs nothing: whoever folds the same news once more writes nothing."""
    print(f"seed {seed}")
    rng = random.Random(1000 + seed)
    nonces = Nonces()
    agreed = random_settings(rng)
    state = create(join("a", 1, agreed), epoch=EPOCH, fresh=nonces())
    for _ in range(60):
        news = [random_record(rng, state, agreed) for _ in range(3)]
        # Without suspicions, which a fold in between may answer, and with nobody held.
        seen = replace(random_evidence(rng), suspects=frozenset(), proven=frozenset(map(inc, NAMES)))
        once = fold(state, news, fresh=nonces(), evidence=seen)
        repeated = [record for record in news if record.seq <= once.sequence(record.inc)]
        assert fold(once, repeated, fresh=nonces(), evidence=seen) is once
        state = once


@pytest.mark.parametrize("seed", range(20))
def test_one_fold_of_many_joiners_admits_the_same_as_many_folds(seed: int) -> None:
    rng = random.Random(seed)
    nonces = Nonces()
    agreed = settings(4, 4)
    order = rng.sample("abcdeg", 6)
    start = create(join(order[0], 1, agreed), epoch=EPOCH, fresh=nonces())
    news = [join(name, 1, agreed) for name in order[1:]]
    batch = fold(start, news, fresh=nonces())
    single = start
    for record in news:
        single = fold(single, [record], fresh=nonces())
    assert (batch.participants, batch.queue, batch.complete) == (single.participants, single.queue, True)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.data())
def test_hypothesis_finds_no_difference_between_the_two_folds(data: st.DataObject) -> None:
    rng = data.draw(st.randoms(use_true_random=False))
    nonces = Nonces()
    agreed = random_settings(rng)
    state = create(join("a", 1, agreed), epoch=EPOCH, fresh=nonces())
    for _ in range(data.draw(st.integers(1, 12))):
        news = [random_record(rng, state, agreed) for _ in range(data.draw(st.integers(0, 4)))]
        seen, fresh = random_evidence(rng), nonces()
        after = fold(state, news, fresh=fresh, evidence=seen)
        assert after == Twin(state, seen, fresh).run(news, 4096)
        assert after is state or invariants(after, state) == []
        state = after


# ---- nodes that behave ------------------------------------------------------------------------------------------


class Behaving(RuleBasedStateMachine):
    """Nodes that follow the rules; crashes, suspicions and late folds come from hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.nonces = Nonces()
        self.agreed = settings(2, 3)
        self.seq: dict[str, int] = {}
        self.log: list[Record] = []
        self.frozen: dict[bytes, tuple[bytes, ...]] = {}
        self.acknowledged: dict[bytes, int] = {}

    @initialize()
    def begin(self) -> None:
        self.seq["a"] = 1
        self.state = create(join("a", 1, self.agreed), epoch=EPOCH, fresh=self.nonces())

    def say(self, name: str, kind: Kind) -> None:
        self.seq[name] = self.seq.get(name, 0) + 1
        if kind is Kind.JOIN:
            record = join(name, self.seq[name], self.agreed)
        else:
            record = Record(inc(name), self.seq[name], kind, round_nonce=self.state.round_nonce * (kind is Kind.FINISH))
        self.log.append(record)
        self.acknowledged.pop(inc(name), None)

    @rule(name=st.sampled_from("abcde"))
    def joins(self, name: str) -> None:
        self.say(name, Kind.JOIN)

    @rule(name=st.sampled_from("abcde"))
    def leaves(self, name: str) -> None:
        self.say(name, Kind.LEAVE)

    @rule(name=st.sampled_from("abcde"))
    def finishes(self, name: str) -> None:
        if self.state.is_member(inc(name)):
            self.say(name, Kind.FINISH)

    @rule(suspects=st.sets(st.sampled_from("abcde"), max_size=2), over=st.booleans(), upto=st.integers(0, 8))
    def folds(self, suspects: set[str], over: bool, upto: int) -> None:
        before = self.state
        seen = Evidence(suspects=frozenset(map(inc, suspects)), last_call_over=over)
        self.state = fold(before, self.log[: max(0, len(self.log) - upto)], fresh=self.nonces(), evidence=seen)
        assert self.state is before or invariants(self.state, before) == []
        self.remember(before)

    @rule()
    def closes(self) -> None:
        if self.state.round > 1:
            before = self.state
            self.state = close(before, fresh=self.nonces())
            self.remember(before)

    def remember(self, before: RendezvousState) -> None:
        for record in self.log:
            owner = record.inc
            acknowledged = self.state.sequence(owner) >= record.seq and not self.state.listed(owner)
            if record.kind is Kind.LEAVE and self.seq[owner.rstrip(b".").decode()] == record.seq and acknowledged:
                self.acknowledged[owner] = record.seq
        if self.state.gen != before.gen:
            # Nobody reads the old log any more; owners announce their current intent again, and nothing older (P8.7).
            self.log = [
                record
                for record in self.log
                if record.seq > self.state.sequence(record.inc)
                and record.seq == self.seq[record.inc.rstrip(b".").decode()]
            ]

    @invariant()
    def a_completed_round_has_one_roster(self) -> None:
        if self.seq and self.state.complete:
            roster = self.frozen.setdefault(self.state.round_nonce, self.state.participants)
            assert roster == self.state.participants

    @invariant()
    def who_has_withdrawn_for_certain_is_in_no_later_round(self) -> None:
        if self.seq:
            for owner in self.acknowledged:
                assert not self.state.listed(owner)

    @invariant()
    def a_forming_round_with_room_has_nobody_waiting(self) -> None:
        if self.seq and not self.state.complete:
            assert not self.state.wait_list


TestNodesThatBehave = Behaving.TestCase
TestNodesThatBehave.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
