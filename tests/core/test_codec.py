"""States and announcements as bytes: round trips, sizes, versions, caps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from arendezvous.core import codec
from arendezvous.core.codec import (
    FORMAT_VERSION,
    MAX_STATE_BYTES,
    decode_record,
    decode_state,
    encode_record,
    encode_state,
)
from arendezvous.core.fold import create, fold
from arendezvous.core.state import Gone, Kind, Record, RendezvousState, invariants
from arendezvous.errors import RendezvousStateError
from arendezvous.node import NodeDesc

from .kit import EPOCH, Nonces, Run, closing, completed, finish, inc, incs, join, leave, node, settings
from .strategies import exactly, records, states

# ---- round trips ------------------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=200, deadline=None)
@given(states())
def test_every_state_comes_back(state: RendezvousState) -> None:
    assert invariants(state) == []
    data = encode_state(state)
    back = decode_state(data)
    assert exactly(back) == exactly(state)
    assert back.participants == state.participants
    assert list(back.nodes) == list(state.nodes)
    assert encode_state(back) == data, "one state has one form"


@hypothesis_settings(max_examples=200, deadline=None)
@given(records())
def test_every_announcement_comes_back(record: Record) -> None:
    data = encode_record(record)
    back = decode_record(data)
    assert back == record
    assert encode_record(back) == data
    if record.node is not None:
        assert back.node is not None
        for name in ("node_rank", "local_world_size", "attributes"):
            assert getattr(back.node, name) == getattr(record.node, name)


@pytest.mark.parametrize("record", [join("a", 3, last_round=7, failed=True), leave("a"), closing("a")])
def test_each_kind_of_announcement_comes_back(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


def test_an_announcement_of_a_finish_carries_its_round() -> None:
    for record in (finish("a", b"r" * 16), leave("a", 3, finished=b"r" * 16)):
        assert decode_record(encode_record(record)).round_nonce == b"r" * 16


def test_every_way_to_be_gone_comes_back() -> None:
    run = completed(1, 5, *"abcde")
    run.step(leave("b"), run.join("c", 2, failed=True), run.join("d", 2), suspects="e")
    assert set(run.state.gone.values()) == set(Gone)
    assert decode_state(encode_state(run.state)) == run.state


def test_attribute_types_come_back_as_they_were() -> None:
    given_: dict[str, Any] = {"text": "ключ", "int": 8, "float": 8.0, "bool": True, "big": 2**64 - 1, "neg": -(2**63)}
    desc = node("a", attributes=given_)
    back = decode_record(encode_record(replace(join("a"), node=desc))).node
    assert back is not None
    assert {k: (type(v), v) for k, v in back.attributes.items()} == {k: (type(v), v) for k, v in given_.items()}


# ---- sizes ------------------------------------------------------------------------------------------------------


def crowd(count: int, *, letters: int = 64) -> RendezvousState:
    """A complete round of ``count`` nodes with addresses of ``letters`` letters and ordinary process numbers."""
    agreed = settings(1, count)
    news = [
        Record(
            (k + 1).to_bytes(16, "big"),
            1,
            Kind.JOIN,
            NodeDesc(f"{k:0{letters}}", 4_000_000 + k, k % 8, (k + 1).to_bytes(16, "big")),
            agreed,
        )
        for k in range(count)
    ]
    nonces = Nonces()
    return fold(create(news[0], epoch=EPOCH, fresh=nonces()), news[1:], fresh=nonces())


@pytest.mark.parametrize(("count", "most"), [(10, 2_000), (100, 16_000), (1000, 160_000), (10_000, 1_600_000)])
def test_states_stay_compact(count: int, most: int) -> None:
    """api.md B.4: 2 KB for 10 nodes, 16 KB/100, 160 KB/1000, 1.6 MB/10 000, addresses of 64 letters."""
    state = crowd(count)
    assert state.complete
    data = encode_state(state)
    assert len(data) <= most
    assert decode_state(data) == state


def test_every_member_gone_and_waiting_again_stays_compact_as_well() -> None:
    state = crowd(1000)
    back = dict.fromkeys(state.participants[1:], Gone.REJOIN)
    state = replace(state, gone=back, queue=tuple(back))
    assert len(encode_state(state)) <= 160_000
    assert decode_state(encode_state(state)) == state


def test_an_announcement_is_small() -> None:
    assert (
        len(encode_record(Record(inc("a"), 1, Kind.JOIN, NodeDesc("h" * 64, 4_000_000, 3, inc("a")), settings()))) < 200
    )
    assert len(encode_record(leave("a"))) < 40


# ---- versions ---------------------------------------------------------------------------------------------------

STATE = encode_state(Run(2, 3).begin("a", "b").state)
RECORD = encode_record(join("a"))
BOTH = [pytest.param(decode_state, STATE, id="state"), pytest.param(decode_record, RECORD, id="record")]


@pytest.mark.parametrize(("decode", "data"), BOTH)
def test_another_format_version_is_named_on_both_sides(decode: Any, data: bytes) -> None:
    for version in (0, FORMAT_VERSION + 1, 255):
        with pytest.raises(RendezvousStateError) as caught:
            decode(data[:4] + bytes([version]) + data[5:])
        assert f"of format version {version}; this node speaks version {FORMAT_VERSION}" in str(caught.value)
        assert "same version of arendezvous" in str(caught.value)


@pytest.mark.parametrize(("decode", "data"), BOTH)
def test_a_newer_version_is_named_whatever_follows(decode: Any, data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="version 9"):
        decode(data[:4] + b"\x09")


def test_states_and_announcements_are_not_mistaken_for_each_other() -> None:
    for decode, data in ((decode_state, RECORD), (decode_record, STATE)):
        with pytest.raises(RendezvousStateError, match="not ours"):
            decode(data)


def test_foreign_bytes_are_told_by_length_and_fingerprint_and_not_shown() -> None:
    with pytest.raises(RendezvousStateError) as caught:
        decode_state(b"secret token of somebody else")
    assert "29 bytes that are not ours (fingerprint " in str(caught.value)
    assert "secret" not in str(caught.value)


# ---- caps -------------------------------------------------------------------------------------------------------


def refused(record: Record) -> str:
    with pytest.raises(RendezvousStateError) as caught:
        decode_record(encode_record(record))
    return str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"attributes": {f"k{k}": 1 for k in range(65)}},
        {"attributes": {"k" * 1025: 1}},
        {"attributes": {"k": "v" * 1025}},
        {"local_world_size": 10**6 + 1},
        {"local_world_size": -1},
        {"node_rank": -1},
        {"node_rank": 10**6 + 1},
    ],
)
def test_descriptors_beyond_the_caps_are_refused(more: dict[str, Any]) -> None:
    assert "corrupt" in refused(replace(join("a"), node=node("a", **more)))


@pytest.mark.parametrize(
    "desc",
    [
        NodeDesc("h" * 1025, 1, 0, inc("a")),
        NodeDesc("h", -1, 0, inc("a")),
        NodeDesc("h", 1, -1, inc("a")),
        NodeDesc("h", 2**63, 0, inc("a")),
        NodeDesc("h", 1, 0, b"short"),
        NodeDesc("h", 1, 0, inc("b")),
    ],
)
def test_impossible_descriptors_are_refused(desc: NodeDesc) -> None:
    assert "corrupt" in refused(replace(join("a"), node=desc))


def test_descriptors_at_the_caps_are_accepted() -> None:
    wide = node("a", place="h" * 1024, attributes={f"k{k}": "v" * 128 for k in range(64)}, node_rank=10**6)
    record = replace(join("a"), node=wide)
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "values",
    [
        {"min_nodes": 0},
        {"min_nodes": 5, "max_nodes": 4},
        {"max_nodes": 10**9},
        {"rank_order": "alphabetical"},
        {"rank_order": "a" * 1000},
        {"last_call": 0.0},
        {"last_call": float("nan")},
        {"last_call": float("inf")},
        {"last_call": -1.0},
        {"keep_alive_interval": 0.0},
        {"keep_alive_interval": 1e300},
        {"keep_alive_max_attempt": 0},
    ],
)
def test_settings_that_no_run_can_have_are_refused(values: dict[str, Any]) -> None:
    """Folded into a vacant state they would bind everybody, or make the state unreadable for everybody."""
    wrong = replace(settings(), **values)
    assert "corrupt" in refused(join("a", agreed=wrong))
    state = Run(2, 3).begin("a").state
    with pytest.raises(RendezvousStateError):
        decode_state(encode_state(replace(state, settings=wrong)))


def test_no_accepted_announcement_makes_the_state_unreadable() -> None:
    """The round number that a joiner asks for is bounded below the largest that a state can hold."""
    record = decode_record(encode_record(join("a", agreed=settings(1, 1), last_round=2**62)))
    nonces = Nonces()
    state = create(record, epoch=EPOCH, fresh=nonces())
    for seq in range(2, 5):
        again = decode_record(encode_record(join("a", seq, settings(1, 1), last_round=state.round)))
        state = fold(decode_state(encode_state(state)), [again], fresh=nonces())
    assert decode_state(encode_state(state)).round == 2**53 + 4


@pytest.mark.parametrize(
    "record",
    [
        replace(leave("a"), seq=0),
        replace(leave("a"), seq=2**62 + 1),
        replace(leave("a"), inc=b"x" * 17),
        replace(leave("a"), last_round=-2),
        replace(leave("a"), round_nonce=b"r" * 17),
    ],
)
def test_announcements_out_of_range_are_refused(record: Record) -> None:
    assert "corrupt" in refused(record)


def test_too_large_a_value_is_refused_by_its_length_alone() -> None:
    with pytest.raises(RendezvousStateError, match=f"has {MAX_STATE_BYTES + 1} bytes; at most {MAX_STATE_BYTES}"):
        decode_state(bytes(MAX_STATE_BYTES + 1))
    with pytest.raises(RendezvousStateError, match="announcement has 20000 bytes"):
        decode_record(bytes(20_000))


# ---- states that contradict themselves --------------------------------------------------------------------------

BODY = msgspec.msgpack.decode(STATE[5:])
FIELDS = codec._State.__struct_fields__
ROW = dict(zip(codec._Node.__struct_fields__, range(9), strict=False))


def packed(body: list[Any]) -> bytes:
    return STATE[:5] + msgspec.msgpack.encode(body)


def test_the_body_of_these_tests_is_a_good_one() -> None:
    assert len(BODY) == len(FIELDS)
    assert decode_state(packed(BODY)).participants == incs("a b")


A, B = BODY[FIELDS.index("nodes")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"participants": [0, 2]}, "corrupt"),
        ({"participants": [0, 0]}, "a participant is listed twice"),
        ({"participants": [0]}, "descriptors do not match"),
        ({"queue": [1]}, "a live participant is queued"),
        ({"queue": [-1]}, "corrupt"),
        ({"gone": [[0, 0]]}, "gone from a round that is forming"),
        ({"gone": [[5, 0]]}, "corrupt"),
        ({"gone": [[0, 4]]}, "corrupt"),
        ({"complete": True, "gone": [[0, 0], [0, 1]]}, "gone or finished twice"),
        ({"complete": True, "finished": [1, 1]}, "gone or finished twice"),
        ({"finished": [0]}, "finished a round that is forming"),
        ({"closed": 2}, "closed as done"),
        ({"closed": 3}, "corrupt"),
        ({"failures": 1}, "more failures than rounds"),
        ({"round": -1}, "corrupt"),
        ({"gen": 2**63}, "corrupt"),
        ({"complete": 1}, "corrupt"),
        ({"nodes": [A, A]}, "described twice"),
        ({"nodes": []}, "corrupt"),
        ({"nodes": [A, B[:3]]}, "corrupt"),
        ({"nodes": [A, [*B, 1, None, {}, "more"]]}, "corrupt"),
        ({"tombstones": [[A[0], 7]]}, "two folded sequences"),
        ({"tombstones": [[b"t" * 16, 1], [b"t" * 16, 2]]}, "two folded sequences"),
        ({"tombstones": [[b"t" * 16, 0]]}, "corrupt"),
        ({"tombstones": [[b"t", 1]]}, "corrupt"),
        ({"epoch": b""}, "corrupt"),
        ({"nonce": "text of sixteen."}, "corrupt"),
        ({"settings": [3, 2, "address", 1.0, 1.0, 3]}, "min_nodes 3 is above max_nodes 2"),
        ({"settings": [1, 1, "address", 1.0, 1.0, 3]}, "more participants than max_nodes"),
        ({"settings": [3, 3, "address", 1.0, 1.0, 3], "complete": True}, "below min_nodes"),
        ({"settings": None}, "corrupt"),
    ],
)
def test_contradictions_are_refused_in_words(changes: dict[str, Any], told: str) -> None:
    body = [changes.get(name, value) for name, value in zip(FIELDS, BODY, strict=True)]
    with pytest.raises(RendezvousStateError) as caught:
        decode_state(packed(body))
    assert told in str(caught.value)


@pytest.mark.parametrize("body", [BODY[:-1], [*BODY, 1], dict(zip(FIELDS, BODY, strict=True)), [], None, 7])
def test_bodies_of_another_shape_are_refused(body: Any) -> None:
    with pytest.raises(RendezvousStateError, match="corrupt"):
        decode_state(packed(body))


def test_bytes_after_the_body_are_refused() -> None:
    for decode, data in ((decode_state, STATE), (decode_record, RECORD)):
        with pytest.raises(RendezvousStateError, match="corrupt"):
            decode(data + b"\x00")
