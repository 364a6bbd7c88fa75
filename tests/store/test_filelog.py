"""The log of a file store: frames and what they add up to."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.errors import RendezvousStateError
from arendezvous.store import filelog
from arendezvous.store.filelog import (
    MAX_FRAME,
    Append,
    Beat,
    Birth,
    Damage,
    Delete,
    End,
    Put,
    Record,
    Replica,
    decode_frame,
    encode_frame,
    encode_head,
)

LEASES = ["0123456789abcdef", "fedcba9876543210"]
keys = st.sampled_from([b"a", b"b", b"c", b"", b"\xff"])
values = st.binary(max_size=6)
records = st.one_of(
    st.builds(Put, keys, values),
    st.builds(Append, keys, values),
    st.builds(Delete, keys),
    st.builds(End, st.sampled_from(LEASES)),
    st.builds(Beat, st.sampled_from(LEASES), st.floats(0.1, 9), st.just(b"clock"), st.floats(0, 9), keys, values),
)


def born(*more: Record) -> Replica:
    replica = Replica()
    replica.apply([Birth(1, b"s" * 16, 0)], 0.0)
    replica.apply(more, 0.0)
    return replica


def state(replica: Replica) -> object:
    return [(key, item.value, item.lease) for key, item in replica.items.items()]


@given(st.lists(records, min_size=1))
def test_a_frame_comes_back_whole_and_with_its_length(some: list[Record]) -> None:
    frame = encode_frame(some)
    assert decode_frame(memoryview(frame)) == (some, len(frame))
    assert decode_frame(memoryview(frame + b"tail")) == (some, len(frame))


def test_every_beginning_of_a_frame_asks_for_more() -> None:
    frame = encode_frame([Put(b"key", b"value"), Delete(b"key")])
    for size in range(len(frame)):
        found, wanted = decode_frame(memoryview(frame[:size]))
        assert found is None
        assert wanted > size


def test_every_changed_byte_is_noticed() -> None:
    frame = encode_frame([Put(b"key", b"value")])
    for at in range(len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 0x10
        with pytest.raises(Damage):
            decode_frame(memoryview(bytes(changed)))


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_damage(data: bytes) -> None:
    try:
        found, wanted = decode_frame(memoryview(data))
    except RendezvousStateError:
        return
    assert found is None
    assert wanted > len(data)


def test_zeros_to_the_end_are_as_good_as_not_written() -> None:
    assert decode_frame(memoryview(bytes(100)))[0] is None
    with pytest.raises(Damage):
        decode_frame(memoryview(bytes(100) + b"x"))


def test_a_well_formed_frame_of_something_else_is_damage() -> None:
    for body in (b"text", msgspec.msgpack.encode([["who", 1]]), msgspec.msgpack.encode([["put", b"key"]])):
        frame = bytearray(encode_frame([]))
        header = filelog._HEADER.pack(len(body), filelog.crc32(body))
        frame = bytearray(header + filelog._CHECK.pack(filelog.crc32(header)) + body)
        with pytest.raises(Damage, match="not understood"):
            decode_frame(memoryview(bytes(frame)))


def test_a_length_that_no_frame_has_is_damage_before_anything_is_read() -> None:
    header = filelog._HEADER.pack(MAX_FRAME + 1, 0)
    with pytest.raises(Damage, match="larger"):
        decode_frame(memoryview(header + filelog._CHECK.pack(filelog.crc32(header))))


def test_a_change_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filelog, "MAX_FRAME", 100)
    with pytest.raises(ValueError, match="larger"):
        encode_frame([Put(b"key", b"x" * 100)])


def test_a_head_is_the_magic_and_one_birth() -> None:
    head = encode_head(b"s" * 16, 3)
    assert head.startswith(filelog.MAGIC)
    assert decode_frame(memoryview(head)[len(filelog.MAGIC) :])[0] == [Birth(1, b"s" * 16, 3)]


@given(st.lists(records, max_size=30))
def test_a_snapshot_adds_up_to_the_same_state_and_its_size_is_known(some: list[Record]) -> None:
    replica = born(*some)
    again = born(*(record for portion in replica.snapshot() for record in portion))
    assert state(again) == state(replica)
    assert {name: lease.keys for name, lease in again.leases.items()} == {
        name: lease.keys for name, lease in replica.leases.items() if lease.keys
    }
    assert again.live == replica.live


def test_large_snapshots_come_in_portions() -> None:
    replica = born(*(Put(b"%d" % index, bytes(2**19)) for index in range(5)))
    assert [len(portion) for portion in replica.snapshot()] == [2, 2, 1]


def test_keys_keep_the_order_of_their_creation() -> None:
    replica = born(Put(b"z", b"1"), Put(b"a", b"2"), Put(b"z", b"3"), Append(b"a", b"4"))
    assert replica.scan(b"") == [(b"z", b"3"), (b"a", b"24")]
    replica.apply([Delete(b"z"), Put(b"z", b"5")], 0.0)
    assert replica.scan(b"") == [(b"a", b"24"), (b"z", b"5")]


def test_the_end_of_a_lease_takes_the_keys_that_it_still_holds() -> None:
    one, two = LEASES
    replica = born(
        Beat(one, 5.0, b"c", 1.0, b"held", b""),
        Beat(one, 5.0, b"c", 1.0, b"plain", b""),
        Beat(one, 5.0, b"c", 1.0, b"moved", b""),
        Put(b"plain", b""),
        Beat(two, 5.0, b"c", 1.0, b"moved", b""),
        End(one),
    )
    assert list(replica.items) == [b"plain", b"moved"]
    replica.apply([End(two), End(two)], 0.0)
    assert list(replica.items) == [b"plain"]


def test_a_refresh_is_dated_by_the_owners_clock_if_it_can_be_read_else_by_when_it_was_seen() -> None:
    replica = born()
    replica.apply([Beat(LEASES[0], 5.0, b"theirs", 1000.0, b"k", b"")], 7.0)
    lease = replica.leases[LEASES[0]]
    assert (lease.refreshed(b"theirs"), lease.refreshed(b"mine")) == (1000.0, 7.0)


def test_leased_keys_are_listed_with_their_age() -> None:
    one, two = LEASES
    replica = born(
        Beat(one, 5.0, b"c", 1.0, b"b", b""), Beat(two, 9.0, b"c", 3.0, b"a", b""), Put(b"ab", b""), Delete(b"none")
    )
    assert replica.leased(b"", b"c", 4.0) == [(b"a", 1.0, 9.0), (b"b", 3.0, 5.0)]
    assert replica.leased(b"a", b"c", 2.0) == [(b"a", 0.0, 9.0)]


def test_a_log_that_is_read_again_does_not_make_old_refreshes_young() -> None:
    beat = Beat(LEASES[0], 5.0, b"theirs", 1000.0, b"k", b"")
    first = born()
    first.apply([beat], 7.0)
    second = Replica(first)
    second.apply([Birth(1, b"s" * 16, 1)], 50.0)
    second.apply([beat], 50.0)
    assert second.leases[LEASES[0]].refreshed(b"mine") == 7.0
    second.apply([msgspec.structs.replace(beat, at=1001.0)], 51.0)
    assert second.leases[LEASES[0]].refreshed(b"mine") == 51.0


def test_changes_are_told_once_and_after_a_reload_any_key_may_have_changed() -> None:
    replica = born(Put(b"a", b""), Append(b"b", b""), Delete(b"missing"))
    assert replica.take_changes() == {b"a", b"b"}
    assert replica.take_changes() == set()
    assert Replica(replica).take_changes() is None


@pytest.mark.parametrize(
    "beat",
    [
        Beat("../../etc/passwd", 5.0, b"c", 1.0, b"k", b""),
        Beat(LEASES[0], -1.0, b"c", 1.0, b"k", b""),
        Beat(LEASES[0], float("inf"), b"c", 1.0, b"k", b""),
        Beat(LEASES[0], 1.0, b"c", float("nan"), b"k", b""),
    ],
)
def test_a_lease_that_makes_no_sense_is_damage(beat: Beat) -> None:
    with pytest.raises(Damage, match="lease"):
        born(beat)


def test_the_birth_is_the_first_record_and_no_other() -> None:
    with pytest.raises(Damage, match="first record"):
        Replica().apply([Put(b"k", b"v")], 0.0)
    with pytest.raises(Damage, match="first record"):
        born(Birth(1, b"s" * 16, 0))


def test_many_appends_are_put_together_once() -> None:
    replica = born(*(Append(b"log", b"%d," % index) for index in range(1000)))
    assert replica.get(b"log") == b"".join(b"%d," % index for index in range(1000))
    assert replica.items[b"log"].size == len(replica.get(b"log") or b"")
