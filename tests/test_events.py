"""Events: states, what an event holds, where it goes, and that a bad recorder hurts nobody."""

from __future__ import annotations

import json
import logging
import os
import platform
from typing import TYPE_CHECKING

import pytest

from arendezvous.events import (
    DEFAULT_DESTINATION,
    LoggingRecorder,
    NodeState,
    RdzvEvent,
    construct_and_record_rdzv_event,
    get_recorder,
    record_rdzv_event,
    register_recorder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def recorded() -> Iterator[list[RdzvEvent]]:
    events: list[RdzvEvent] = []
    before = register_recorder(events.append)
    yield events
    register_recorder(before)


def test_the_states_are_the_documented_ones_and_are_text() -> None:
    assert [state.value for state in NodeState] == [
        "INITIALIZED",
        "STARTING",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "HEALTHY",
        "UNHEALTHY",
        "CLOSED",
        "STOPPED",
    ]
    assert all(isinstance(state, str) and str(state) == state.name for state in NodeState)
    assert NodeState["INIT"] is NodeState["INITIALIZED"]
    assert NodeState("RUNNING") is NodeState.RUNNING


def test_nobody_listens_until_somebody_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_recorder() is None
    # Without a recorder no event is even built.
    monkeypatch.setattr("arendezvous.events.RdzvEvent", None)
    construct_and_record_rdzv_event(NodeState.RUNNING, "r", "m")


def test_an_event_for_nobody_is_dropped(recorded: list[RdzvEvent]) -> None:
    record_rdzv_event(RdzvEvent(NodeState.RUNNING, "r", "m"), "nobody")
    assert recorded == []


def test_an_event_says_what_where_and_who(recorded: list[RdzvEvent]) -> None:
    construct_and_record_rdzv_event(
        NodeState.SUCCEEDED, "r", "round 3 is complete", name="completed", master_endpoint="h:29400", rank=0, local_id=2
    )
    (event,) = recorded
    assert event == RdzvEvent(
        NodeState.SUCCEEDED,
        "r",
        "round 3 is complete",
        name="completed",
        hostname=platform.node(),
        pid=os.getpid(),
        master_endpoint="h:29400",
        rank=0,
        local_id=2,
    )
    assert event.rendezvous_id == "r"
    assert event.error_trace == ""


def test_what_is_given_wins_over_what_would_be_found_out(recorded: list[RdzvEvent]) -> None:
    construct_and_record_rdzv_event(NodeState.FAILED, "r", "m", hostname="h", pid=7, local_rank=1, error_trace="trace")
    (event,) = recorded
    assert (event.hostname, event.pid, event.local_rank, event.error_trace) == ("h", 7, 1, "trace")


def test_a_failure_carries_the_traceback_being_handled(recorded: list[RdzvEvent]) -> None:
    try:
        raise KeyError("the cause")
    except KeyError:
        construct_and_record_rdzv_event(NodeState.FAILED, "r", "failed")
        construct_and_record_rdzv_event(NodeState.CLOSED, "r", "closed all the same")
    construct_and_record_rdzv_event(NodeState.FAILED, "r", "nothing is being handled")
    assert "KeyError: 'the cause'" in recorded[0].error_trace
    assert [event.error_trace for event in recorded[1:]] == ["", ""]


def test_state_and_run_id_exchanged_are_refused() -> None:
    with pytest.raises(ValueError, match="'my-run' is not a valid NodeState"):
        construct_and_record_rdzv_event("my-run", NodeState.RUNNING, "m")  # type: ignore[arg-type]


def test_a_state_given_as_text_becomes_a_state(recorded: list[RdzvEvent]) -> None:
    construct_and_record_rdzv_event("RUNNING", "r", "m")  # type: ignore[arg-type]
    assert recorded[0].node_state is NodeState.RUNNING


def test_destinations_are_independent(recorded: list[RdzvEvent]) -> None:
    other: list[RdzvEvent] = []
    assert register_recorder(other.append, "elsewhere") is None
    construct_and_record_rdzv_event(NodeState.RUNNING, "r", "here")
    construct_and_record_rdzv_event(NodeState.RUNNING, "r", "there", destination="elsewhere")
    construct_and_record_rdzv_event(NodeState.RUNNING, "r", "nowhere", destination="nobody")
    register_recorder(None, "elsewhere")
    construct_and_record_rdzv_event(NodeState.RUNNING, "r", "too late", destination="elsewhere")
    assert [event.message for event in recorded] == ["here"]
    assert [event.message for event in other] == ["there"]


def test_registering_gives_back_the_recorder_before() -> None:
    def first(event: RdzvEvent) -> None: ...
    def second(event: RdzvEvent) -> None: ...

    assert register_recorder(first) is None
    assert register_recorder(second) is first
    assert get_recorder(DEFAULT_DESTINATION) is second
    assert register_recorder(None) is second
    assert register_recorder(None) is None


def test_a_recorder_that_fails_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: RdzvEvent) -> None:
        raise OSError("the disk is full")

    register_recorder(broken)
    try:
        construct_and_record_rdzv_event(NodeState.RUNNING, "r", "m")
    finally:
        register_recorder(None)
    (entry,) = caplog.records
    assert "the recorder of 'rdzv_logger' failed" in entry.getMessage()
    assert entry.exc_info is not None


def test_an_event_survives_its_line_of_json() -> None:
    event = RdzvEvent(NodeState.FAILED, "rün", "m\nn", rank=3, error_trace="Traceback")
    line = event.serialize()
    assert str(event) == line
    assert "\n" not in line
    assert RdzvEvent.deserialize(line) == event
    newer = json.dumps({**json.loads(line), "a member of a later version": 1})
    assert RdzvEvent.deserialize(newer) == event


@pytest.mark.parametrize("text", ["", "1", "[]", "{}", '{"node_state": "RUNNING"}', '{"node_state": "X"}', "not json"])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a rendezvous event"):
        RdzvEvent.deserialize(text)


def test_the_logging_recorder_hands_on_message_and_members(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "monitor")
    recorder = LoggingRecorder(logging.getLogger("monitor"))
    event = RdzvEvent(NodeState.RUNNING, "r", "joined 100 %", name="joined", rank=1)
    recorder(event)
    recorder(RdzvEvent(NodeState.FAILED, "r", "broke"))
    joined, broke = caplog.records
    assert joined.getMessage() == "r: joined 100 %"
    assert (joined.levelno, broke.levelno) == (logging.INFO, logging.ERROR)
    members = vars(joined)
    assert members["rdzv_event"] is event
    assert (members["rdzv_run_id"], members["rdzv_node_state"], members["rdzv_rank"]) == ("r", "RUNNING", 1)
    assert members["rdzv_message"] == "joined 100 %"


def test_the_logging_recorder_respects_the_level_of_its_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "arendezvous.events")
    register_recorder(LoggingRecorder())
    try:
        construct_and_record_rdzv_event(NodeState.RUNNING, "r", "too quiet")
        record_rdzv_event(RdzvEvent(NodeState.FAILED, "r", "loud enough"))
    finally:
        register_recorder(None)
    assert [entry.getMessage() for entry in caplog.records] == ["r: loud enough"]
