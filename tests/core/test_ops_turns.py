"""Who folds when (protocol.md P6), the last call, and the sentences that say where a node stands."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from arendezvous.core.fold import close
from arendezvous.core.liveness import Sighting, absent, seen
from arendezvous.core.ops import BATCH, TURN, Action, Decision, Me, Memory, Role, View, decide, sentence
from arendezvous.core.state import Closed, Record, RendezvousState, invariants

from .kit import EPOCH, Nonces, Run, completed, finish, inc, join, leave, settings, spell
from .test_fold_random import NAMES, place_of, random_record, random_settings
from .test_ops import me, view

NEWS = join("x", agreed=settings(2, 9))


def forming(count: int) -> Run:
    """Participants a, b, c ... of a round for up to nine, at least two; the last call is far away."""
    return Run(2, 9, {"last_call": 1000.0}).begin(*"abcdefgh"[:count])


def news(run: Run, name: str = "x") -> Record:
    return run.join(name)


class Node:
    """One observer whose memory goes from each decision to the next."""

    def __init__(self, run: Run, name: str, role: Role = Role.JOINING, **more: object) -> None:
        self.run, self.memory = run, Memory()
        self.me = me(name, role, run, **more)
        self.sightings: dict[bytes, Sighting] = {}
        self.jitter = 0.0

    def __call__(self, now: float, *records: Record) -> Decision:
        v = view(self.run.state, self.me, *records, memory=self.memory, sightings=self.sightings, jitter=self.jitter)
        decision = decide(v, now)
        self.memory = decision.memory
        return decision

    def turn(self, *records: Record, start: float = 0.0) -> float:
        """How long it waits before it folds."""
        decision = self(start, *records)
        if decision.action is Action.FOLD:
            return 0.0
        due = decision.wake_at
        assert math.isfinite(due)
        assert self(due - 1e-6, *records).action is Action.WAIT
        assert self(due, *records).action is Action.FOLD
        return due - start


# ---- turns ------------------------------------------------------------------------------------------------------


def test_the_first_participant_batches_newcomers() -> None:
    assert 0.01 <= BATCH <= 0.05
    run = forming(3)
    assert Node(run, "a").turn(news(run)) == pytest.approx(BATCH)


@pytest.mark.parametrize(("name", "place"), [("b", 1), ("c", 2), ("h", 7)])
def test_later_participants_take_over_one_turn_after_another(name: str, place: int) -> None:
    """F13: the first may be suspended although it beats."""
    run = forming(8)
    assert Node(run, name).turn(news(run)) == pytest.approx(TURN * place)


def test_no_turn_is_later_than_the_eighth() -> None:
    run = Run(2, 30, {"last_call": 1000.0}).begin(*[f"n{k:02}" for k in range(20)])
    assert Node(run, "n19").turn(news(run)) == pytest.approx(TURN * 8)


def test_the_jitter_spreads_turns_but_not_the_first() -> None:
    run = forming(3)
    for name, turn in (("a", BATCH), ("b", TURN * 1.5)):
        node = Node(run, name)
        node.jitter = 0.5
        assert node.turn(news(run)) == pytest.approx(turn)


def test_who_is_not_listed_comes_after_the_ring_and_the_records_before_its_own() -> None:
    run = forming(2)
    records = [news(run, "x"), news(run, "y")]
    assert Node(run, "x").turn(*records) == pytest.approx(TURN * 2)
    assert Node(run, "y").turn(*records) == pytest.approx(TURN * 3)


def test_folded_records_are_no_reason_to_wait() -> None:
    run = forming(2)
    records = [news(run, "a"), news(run, "b"), news(run, "y")]
    assert Node(run, "y").turn(*records) == pytest.approx(TURN * 2)


def test_a_newcomer_folds_itself_into_a_vacant_state_at_once() -> None:
    run = forming(1)
    run.step(leave("a"))
    assert Node(run, "x").turn() == pytest.approx(BATCH)
    assert Node(run, "y").turn(news(run, "x"), news(run, "y")) == pytest.approx(TURN)


def test_what_completes_the_round_does_not_wait_for_more() -> None:
    run = Run(2, 2).begin("a")
    assert Node(run, "a").turn(run.join("b")) == 0.0


def test_a_member_folds_as_well() -> None:
    run = completed(2, 3, "a", "b")
    assert Node(run, "b", Role.MEMBER).turn(run.join("x")) == pytest.approx(TURN)


def test_a_changed_state_re_arms_the_turn_once() -> None:
    """F21: or a steady trickle of writes would keep everybody from taking over."""
    run = forming(3)
    node = Node(run, "c")
    assert node(0.0, news(run)).wake_at == pytest.approx(2 * TURN)
    run.state = replace(run.state, nonce=b"2" * 16)
    assert node(0.1, news(run)).wake_at == pytest.approx(0.1 + 2 * TURN)
    run.state = replace(run.state, nonce=b"3" * 16)
    assert node(0.2, news(run)).wake_at == pytest.approx(0.1 + 2 * TURN)
    assert node(0.1 + 2 * TURN, news(run)).action is Action.FOLD


def test_done_work_forgets_the_turn() -> None:
    run = forming(3)
    node = Node(run, "c")
    record = news(run)
    node(0.0, record)
    run.step(record)
    assert node(0.1, record).memory.work is None
    assert node(5.0, news(run, "y")).wake_at == pytest.approx(5.0 + 2 * TURN)


def test_a_leaver_has_no_turn_only_jitter_that_grows_with_the_world() -> None:
    small, large = forming(3), Run(2, 400).begin(*[f"n{k:03}" for k in range(300)])
    for run, name, most in ((small, "c", BATCH + 0.006), (large, "n299", 0.3)):
        node = Node(run, name, Role.LEAVING, seq=2)
        assert node.turn() == 0.0
        node = Node(run, name, Role.LEAVING, seq=2)
        node.jitter = 0.999
        assert node.turn() == pytest.approx(0.999 * most)


# ---- deaths -----------------------------------------------------------------------------------------------------


def dead(*names: str) -> dict[bytes, Sighting]:
    return {inc(name): absent(seen(None, b"1", -9.0), -1.0) for name in names}


@pytest.mark.parametrize(("name", "turn"), [("b", 0.0), ("a", TURN), ("d", TURN * 2)])
def test_the_predecessor_of_a_dead_node_buries_it_first(name: str, turn: float) -> None:
    run = completed(4, 4, *"abcd")
    node = Node(run, name, Role.MEMBER)
    node.sightings = dead("c")
    assert node.turn() == pytest.approx(turn)


def test_the_nearest_of_several_dead_counts() -> None:
    run = completed(5, 5, *"abcde")
    node = Node(run, "c", Role.MEMBER)
    node.sightings = dead("b", "d")
    decision = node(0.0)
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert spell(decision.proposal.owed) == "b d"


def test_a_newcomer_takes_the_place_of_the_dead() -> None:
    """F7: all members dead, nobody but the newcomer is there to bury them."""
    run = completed(2, 2, "a", "b")
    node = Node(run, "x")
    node.sightings = dead("a", "b")
    decision = node(0.0)
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert (decision.proposal.round, spell(decision.proposal.participants)) == (1, "x")


def test_nobody_suspects_itself_and_everybody_proves_itself() -> None:
    run = forming(2)
    node = Node(run, "a")
    node.sightings = dead("a")
    assert node(0.0).action is Action.WAIT

    twin = run.join("x", place="b")
    holding = Node(run, "x")
    holding.me = replace(holding.me, node=twin.node)  # type: ignore[arg-type]
    holding.sightings = {inc("b"): seen(seen(None, b"1", 0.0), b"2", 1.0)}
    assert holding(1.5).memory.work is not None, "b and the observer beat: they are two"
    holding.sightings = {inc("b"): seen(None, b"1", 0.0)}
    assert holding(1.5).memory.work is None


def test_the_next_possible_death_wakes() -> None:
    run = completed(2, 2, "a", "b")
    node = Node(run, "a", Role.MEMBER)
    node.sightings = {inc("b"): seen(None, b"1", 3.0)}
    assert node(4.0).wake_at == 3.0 + run.agreed.expiry
    assert node(3.0 + run.agreed.expiry).action is Action.FOLD


def test_agreed_keep_alive_values_judge_and_not_the_observers_own() -> None:
    """F22, P12."""
    run = Run(2, 3, {"keep_alive_interval": 7.0, "keep_alive_max_attempt": 2}).begin("a", "b")
    node = Node(run, "a")
    node.sightings = {inc("b"): seen(None, b"1", 0.0)}
    assert node(1.0).wake_at == 14.0


# ---- last call --------------------------------------------------------------------------------------------------


def last_call(*names: str) -> Run:
    return Run(2, 4, {"last_call": 10.0}).begin(*names)


def test_the_last_call_ends_exactly_when_it_is_over() -> None:
    """R23: counted from when this observer first saw the minimum."""
    run = last_call("a", "b", "c")
    node = Node(run, "a")
    assert node(5.0).wake_at == 15.0
    assert node(14.999).action is Action.WAIT
    decision = node(15.0)
    assert (decision.action, decision.reason) == (Action.FOLD, "completing round 0 with 3 nodes")
    assert decision.proposal is not None
    assert decision.proposal.complete


def test_others_end_the_last_call_later_turn_by_turn() -> None:
    run = last_call("a", "b", "c")
    assert Node(run, "b")(5.0).wake_at == pytest.approx(15.0 + TURN)
    node = Node(run, "c")
    assert node(5.0).wake_at == pytest.approx(15.0 + 2 * TURN)
    assert node(15.0 + 2 * TURN).wake_at == pytest.approx(15.0 + 4 * TURN)
    assert node(15.0 + 4 * TURN).action is Action.FOLD


def test_a_flapping_node_does_not_restart_the_last_call() -> None:
    """D45."""
    run = last_call("a", "b")
    node = Node(run, "a")
    node(0.0)
    for seq in range(1, 9):
        run.step(run.join("c", 2 * seq - 1) if seq % 2 else leave("c", 2 * seq))
        assert node(float(seq)).wake_at == 10.0
    run.step(leave("b", 2), run.join("d"))
    assert node(9.5).wake_at == 10.0, "replaced in one write: never seen below the minimum"
    assert node(10.0).action is Action.FOLD


def test_below_the_minimum_the_last_call_is_forgotten() -> None:
    run = last_call("a", "b")
    node = Node(run, "a")
    node(0.0)
    run.step(leave("b"))
    assert node(4.0).memory.min_seen is None
    run.step(run.join("b", 3))
    assert node(6.0).wake_at == 16.0


def test_each_round_has_its_own_last_call() -> None:
    run = last_call("a", "b")
    node = Node(run, "a")
    node(0.0)
    run.step(over=True)
    run.step(run.join("a", 2), run.join("b", 2))
    node.me = replace(node.me, seq=2, last_round=0, announced=(EPOCH, run.state.gen))
    assert node(20.0).wake_at == 30.0


def test_a_shaky_participant_outlasts_the_last_call() -> None:
    """R107: it is judged within the grace, not ranked."""
    run = last_call("a", "b", "c")
    node = Node(run, "a")
    node(0.0)
    node.sightings = {inc("c"): seen(seen(None, b"1", 0.0), b"1", 9.5, attached=False)}
    decision = node(10.0)
    assert (decision.action, decision.wake_at) == (Action.WAIT, 10.5)
    assert node(10.5).wake_at == 10.5 + TURN, "b is c's predecessor"
    decision = node(10.5 + TURN)
    assert decision.proposal is not None
    assert (spell(decision.proposal.participants), decision.proposal.complete) == ("a b", True)


# ---- sentences --------------------------------------------------------------------------------------------------


def told(
    state: RendezvousState | None, name: str, role: Role = Role.JOINING, now: float = 0.0, **memory: object
) -> str:
    who = Me(inc(name), join(name).node, settings(), role, seq=1)  # type: ignore[arg-type]
    return sentence(View(state, (), who, Nonces()(), memory=Memory(**memory)), now)  # type: ignore[arg-type]


def test_sentences_count_and_name() -> None:
    assert told(None, "a") == "nobody has joined yet"
    run = Run(3, 4).begin("a")
    assert told(run.state, "a") == "1/4 nodes joined round 0 (min 3, max 4); at least 2 more must join"
    assert told(run.state, "z").endswith("at least 2 more must join; this node is not in yet")
    run = last_call("a", "b")
    assert told(run.state, "a") == "2/4 nodes joined round 0 (min 2, max 4)"
    since = (run.state.round_nonce, 3.0)
    assert told(run.state, "a", now=11.8, min_seen=since).endswith("(min 2, max 4); last call ends in 1.2 s")
    assert told(run.state, "a", now=99.0, min_seen=since).endswith("last call ends in 0.0 s")
    run = completed(1, 2, "a", "b")
    assert told(run.state, "a") == "round 0 is complete with 2 nodes (min 1, max 2)"
    run.step(*map(run.join, "xyz"))
    assert told(run.state, "y").endswith("this node is a spare, 3 nodes in the queue")
    run.step(suspects="b")
    assert told(run.state, "a").endswith("; round 0: lost: b_1_0; waiting: x_1_0")
    assert told(run.state, "x").endswith("waiting until its members re-join: a_1_0")
    run.step(finish("a", run.state.round_nonce))
    assert (run.state.round, run.state.complete) == (1, True)
    one = completed(1, 1, "a")
    assert "complete with 1 node (" in told(one.state, "a")
    assert told(close(one.state, fresh=one.nonces()), "a") == "the rendezvous is closed in round 0"
    one.step(finish("a", one.state.round_nonce))
    assert told(one.state, "a") == "the rendezvous is done in round 0"


def test_the_reason_of_a_fold_says_what_it_does() -> None:
    run = completed(1, 2, "a", "b")
    rejoin = run.join("b", 2)
    assert "round 0: 1 in, 1 waiting" in _reason(run, rejoin)
    assert _reason(run, leave("a"), leave("b")) == "opening round 1 with 0 nodes"
    assert _reason(run, run.join("a", 2), rejoin) == "completing round 1 with 2 nodes"
    end = [finish(name, run.state.round_nonce) for name in "ab"]
    assert _reason(run, *end) == f"round 0 is {Closed.DONE.value}"


def _reason(run: Run, *records: Record) -> str:
    node = Node(run, "a", Role.MEMBER)
    node(0.0, *records)
    return node(9.0, *records).reason


# ---- every view has an answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_every_random_view_has_an_answer_that_does_not_spin(seed: int) -> None:
    """A WAIT lies in the future, a FOLD keeps the invariants, a reason is a sentence."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    agreed = replace(random_settings(rng), last_call=0.7, keep_alive_interval=0.1)
    nonces = Nonces()
    state: RendezvousState | None = None
    memory = {name: Memory(join_since=0.1) for name in NAMES}
    sightings: dict[str, dict[bytes, Sighting]] = {name: {} for name in NAMES}
    now = 0.1
    for step in range(150):
        name = rng.choice(NAMES)
        records = [] if state is None else [random_record(rng, state, agreed) for _ in range(rng.randint(0, 2))]
        for one in NAMES:
            before = sightings[name].get(inc(one))
            value = b"%d" % rng.randint(0, 1)
            looked = rng.random()
            if looked < 0.8:
                sightings[name][inc(one)] = seen(before, value, now, attached=looked < 0.7)
            else:
                sightings[name][inc(one)] = absent(before, now)
        role = rng.choice(list(Role))
        nonce = rng.choice((b"o" * 16, b"" if state is None else state.round_nonce))
        seq = 1 + (0 if state is None else state.sequence(inc(name))) * (rng.random() < 0.8)
        announced = None if state is None or rng.random() < 0.1 else (state.epoch, state.gen)
        desc = join(name, place=place_of(name)).node
        assert desc is not None
        who = Me(inc(name), desc, agreed, role, seq, announced, rng.randint(-1, 3), nonce, finished=rng.random() < 0.2)
        fresh = nonces()
        v = View(state, tuple(records), who, fresh, EPOCH, sightings[name], memory[name], 4.0, 0.2, rng.random())
        decision = decide(v, now)
        told = f"seed {seed}, step {step}: {decision}"
        memory[name] = decision.memory
        assert " " in decision.reason, told
        assert (decision.proposal is not None) == (decision.action is Action.FOLD), told
        if decision.action is Action.WAIT:
            assert decision.wake_at > now, told
            now = decision.wake_at if math.isfinite(decision.wake_at) and rng.random() < 0.5 else now + rng.random()
        elif decision.proposal is not None:
            assert invariants(decision.proposal, state) == [], told
            state = decision.proposal
        if state is not None and state.is_closed:
            state, memory = None, {name: Memory(join_since=now) for name in NAMES}
