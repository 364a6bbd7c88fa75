"""Streams in memory and streams that fail."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import SocketAttribute
from anyio.lowlevel import checkpoint

from arendezvous.testing import FaultyStream, memory_stream_pair
from tests.support import VIRTUAL, fail_after

if TYPE_CHECKING:
    from collections.abc import Callable


async def drain(stream: anyio.abc.ByteReceiveStream) -> bytes:
    received = b""
    try:
        while True:
            received += await stream.receive()
    except EndOfStream:
        return received


class TestMemoryByteStream:
    async def test_what_one_end_sends_the_other_receives(self) -> None:
        a, b = memory_stream_pair()
        await a.send(b"there")
        await b.send(b"back")
        assert await b.receive() == b"there"
        assert await a.receive() == b"back"

    async def test_a_receiver_gets_no_more_than_it_asked_for(self) -> None:
        a, b = memory_stream_pair()
        await a.send(b"abcdef")
        assert [await b.receive(4), await b.receive(4)] == [b"abcd", b"ef"]
        with pytest.raises(ValueError, match="max_bytes"):
            await b.receive(0)

    async def test_a_receiver_waits_for_the_first_byte(self) -> None:
        a, b = memory_stream_pair()
        received: list[bytes] = []

        async def receiver() -> None:
            received.append(await b.receive())

        with fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(receiver)
                await anyio.wait_all_tasks_blocked()
                await a.send(b"x")
        assert received == [b"x"]

    async def test_a_sender_waits_while_the_peer_does_not_read(self) -> None:
        a, b = memory_stream_pair(capacity=10)
        sent = False

        async def sender() -> None:
            nonlocal sent
            await a.send(b"0123456789abcde")
            sent = True

        with fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(sender)
                await anyio.wait_all_tasks_blocked()
                assert not sent
                assert await b.receive(4) == b"0123"
                await anyio.wait_all_tasks_blocked()
                assert not sent
                assert await b.receive() == b"456789abcd"
                await anyio.wait_all_tasks_blocked()
                assert sent
                assert await b.receive() == b"e"

    async def test_a_receive_cancelled_in_the_tick_of_the_arrival_loses_no_byte(self) -> None:
        a, b = memory_stream_pair()
        received = b""

        async def receiver() -> None:
            nonlocal received
            received += await b.receive()

        for _ in range(200):
            async with anyio.create_task_group() as group:
                group.start_soon(receiver)
                for _ in range(5):
                    await checkpoint()
                await a.send(b"x")
                group.cancel_scope.cancel()
        await a.send_eof()
        received += await drain(b)
        assert received == b"x" * 200

    async def test_a_cancelled_send_may_have_delivered_a_part_and_the_rest_never_comes(self) -> None:
        a, b = memory_stream_pair(capacity=3)
        with anyio.move_on_after(0.01):
            await a.send(b"abcdef")
        await a.send_eof()
        assert await drain(b) == b"abc"

    async def test_eof_ends_one_direction_only(self) -> None:
        a, b = memory_stream_pair()
        await a.send(b"last")
        await a.send_eof()
        await a.send_eof()
        assert await drain(b) == b"last"
        await b.send(b"reply")
        assert await a.receive() == b"reply"
        with pytest.raises(ClosedResourceError):
            await a.send(b"more")

    async def test_a_closed_peer_is_the_end_to_a_receiver_and_broken_to_a_sender(self) -> None:
        a, b = memory_stream_pair()
        await a.send(b"kept")
        await a.aclose()
        await a.aclose()
        assert await b.receive() == b"kept"
        with pytest.raises(EndOfStream):
            await b.receive()
        with pytest.raises(BrokenResourceError):
            await b.send(b"x")

    async def test_a_closed_end_refuses_every_use(self) -> None:
        a, _ = memory_stream_pair()
        await a.aclose()
        with pytest.raises(ClosedResourceError):
            await a.receive()
        with pytest.raises(ClosedResourceError):
            await a.send(b"x")
        with pytest.raises(ClosedResourceError):
            await a.send_eof()

    async def test_closing_with_unread_data_resets_the_connection(self) -> None:
        a, b = memory_stream_pair()
        await b.send(b"never read")
        await a.send(b"goodbye")
        await a.aclose()
        assert await b.receive() == b"goodbye"
        with pytest.raises(BrokenResourceError):
            await b.receive()

    async def test_an_abort_breaks_both_ends(self) -> None:
        a, b = memory_stream_pair()
        a.abort()
        for end in (a, b):
            with pytest.raises(BrokenResourceError):
                await end.receive()
            with pytest.raises(BrokenResourceError):
                await end.send(b"x")

    @pytest.mark.parametrize("method", ["receive", "send"])
    @pytest.mark.parametrize(
        ("event", "error"),
        [
            pytest.param(lambda a, b: a.aclose(), ClosedResourceError, id="own end closed"),
            pytest.param(lambda a, b: b.aclose(), (EndOfStream, BrokenResourceError), id="peer closed"),
        ],
    )
    async def test_closing_wakes_whoever_waits(
        self, method: str, event: Callable[..., object], error: type[Exception] | tuple[type[Exception], ...]
    ) -> None:
        a, b = memory_stream_pair(capacity=1)
        await a.send(b"f")

        async def use() -> None:
            with pytest.raises(error):
                await (a.receive() if method == "receive" else a.send(b"x"))

        with fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(use)
                await anyio.wait_all_tasks_blocked()
                await event(a, b)  # type: ignore[misc]

    async def test_two_receivers_or_two_senders_are_refused(self) -> None:
        a, _ = memory_stream_pair(capacity=1)
        async with anyio.create_task_group() as group:
            group.start_soon(a.receive)
            group.start_soon(a.send, b"too long")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(BusyResourceError):
                await a.receive()
            with pytest.raises(BusyResourceError):
                await a.send(b"x")
            with pytest.raises(BusyResourceError):
                await a.send_eof()
            group.cancel_scope.cancel()

    def test_a_pair_without_room_is_refused(self) -> None:
        with pytest.raises(ValueError, match="capacity"):
            memory_stream_pair(0)

    def test_the_ends_know_the_addresses_they_were_given(self) -> None:
        a, b = memory_stream_pair(addresses=(("10.0.0.1", 4000), ("10.0.0.2", 29500)))
        assert a.extra(SocketAttribute.remote_address) == ("10.0.0.2", 29500)
        assert a.extra(SocketAttribute.local_port) == 4000
        assert b.extra(SocketAttribute.remote_port) == 4000
        plain, _ = memory_stream_pair()
        with pytest.raises(anyio.TypedAttributeLookupError):
            plain.extra(SocketAttribute.remote_address)


class TestFaultyStream:
    async def test_without_a_fault_everything_passes(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a)
        await faulty.send(b"abc")
        await faulty.send(b"")
        await b.send(b"defg")
        assert await b.receive() == b"abc"
        assert await faulty.receive() == b"defg"
        await faulty.send_eof()
        with pytest.raises(EndOfStream):
            await b.receive()
        assert (faulty.sent, faulty.received, faulty.replies) == (3, 4, 1)

    @pytest.mark.parametrize("at", range(7))
    async def test_a_cut_delivers_exactly_the_bytes_before_it(self, at: int) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, cut_send_at=at)
        if at < 6:
            with pytest.raises(BrokenResourceError):
                await faulty.send(b"abcdef")
        else:
            await faulty.send(b"abcdef")
        assert await drain(b) == b"abcdef"[:at]
        with pytest.raises(BrokenResourceError):
            await faulty.receive()

    @pytest.mark.parametrize("at", range(7))
    async def test_a_cut_reply_ends_at_its_byte(self, at: int) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, cut_receive_at=at)
        await b.send(b"abcdef")
        received = b""

        async def receive_all() -> None:
            nonlocal received
            while True:
                received += await faulty.receive()

        with pytest.raises(BrokenResourceError):
            await receive_all()
        assert received == b"abcdef"[:at]
        with pytest.raises(BrokenResourceError):
            await b.send(b"more")

    async def test_a_dropped_reply_leaves_the_request_delivered(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, drop_reply=2)
        for request in (b"1", b"2"):
            await faulty.send(request)
            assert await b.receive() == request
            await b.send(b"ok")
            if request == b"1":
                assert await faulty.receive() == b"ok"
            else:
                with pytest.raises(BrokenResourceError):
                    await faulty.receive()

    async def test_a_half_close_stops_sending_but_not_receiving(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, half_close_at=2)
        with pytest.raises(BrokenResourceError):
            await faulty.send(b"abc")
        assert await drain(b) == b"ab"
        await b.send(b"reply")
        assert await faulty.receive() == b"reply"

    async def test_a_stall_holds_both_ends_open_until_it_is_healed(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, stall_send_at=1, stall_receive_at=1)
        got: list[bytes] = []

        async def receiver() -> None:
            got.append(await faulty.receive())
            got.append(await faulty.receive())

        with fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(faulty.send, b"abc")
                group.start_soon(receiver)
                await b.send(b"xyz")
                await anyio.wait_all_tasks_blocked()
                assert got == [b"x"]
                assert await b.receive() == b"a"
                faulty.heal()
                assert await b.receive() == b"bc"
        assert got == [b"x", b"yz"]

    async def test_a_stall_from_now_on_holds_back_what_arrives_later(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a)
        got: list[bytes] = []

        async def receiver() -> None:
            got.append(await faulty.receive())

        with fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(receiver)
                await anyio.wait_all_tasks_blocked()
                faulty.stall()
                await b.send(b"late")
                await anyio.wait_all_tasks_blocked()
                assert got == []
                faulty.heal()
        assert got == [b"late"]

    @pytest.mark.parametrize(("close", "error"), [("aclose", ClosedResourceError), ("cut", BrokenResourceError)])
    async def test_closing_wakes_whoever_stalls(self, close: str, error: type[Exception]) -> None:
        a, _ = memory_stream_pair()
        faulty = FaultyStream(a, stall_send_at=0)

        async def use(call: Callable[[], object]) -> None:
            with pytest.raises(error):
                await call()  # type: ignore[misc]

        with fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(use, lambda: faulty.send(b"x"))
                group.start_soon(use, faulty.receive)
                await anyio.wait_all_tasks_blocked()
                await getattr(faulty, close)()

    async def test_chunks_split_what_is_sent_and_received(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, chunk=2)
        await faulty.send(b"abcde")
        assert await b.receive() == b"abcde"
        await b.send(b"abcde")
        assert [await faulty.receive() for _ in range(3)] == [b"ab", b"cd", b"e"]

    @VIRTUAL
    async def test_delays_come_from_the_generator_and_are_the_same_for_one_seed(self) -> None:
        async def run(seed: int) -> list[float]:
            a, b = memory_stream_pair()
            faulty = FaultyStream(a, delay=(1.0, 2.0), rng=random.Random(seed))
            times = []
            for _ in range(5):
                began = anyio.current_time()
                await faulty.send(b"x")
                await b.receive()
                times.append(round(anyio.current_time() - began, 6))
            return times

        first = await run(7)
        assert first == await run(7) != await run(8)
        assert all(1.0 <= seconds <= 2.0 for seconds in first)

    @VIRTUAL
    async def test_a_receive_cancelled_in_its_delay_keeps_the_chunk_for_the_next(self) -> None:
        a, b = memory_stream_pair()
        faulty = FaultyStream(a, delay=10)
        await b.send(b"x")
        with anyio.move_on_after(1):
            await faulty.receive()
        assert await faulty.receive() == b"x"

    async def test_the_wait_is_the_callers(self) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        a, b = memory_stream_pair()
        faulty = FaultyStream(a, delay=3.5, sleep=sleep)
        await faulty.send(b"x")
        await b.send(b"y")
        assert await faulty.receive() == b"y"
        assert slept == [3.5, 3.5]

    def test_a_range_of_delays_without_a_generator_is_refused(self) -> None:
        with pytest.raises(ValueError, match="rng"):
            FaultyStream(memory_stream_pair()[0], delay=(0, 1))

    def test_a_chunk_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="chunk"):
            FaultyStream(memory_stream_pair()[0], chunk=0)
