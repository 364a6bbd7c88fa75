"""What a member of a round is given."""

from __future__ import annotations

import dataclasses
import pickle

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError
from arendezvous.handler.info import RendezvousInfo, RendezvousStoreInfo, host_name, propose, publish
from arendezvous.store.memory import MemoryStore
from arendezvous.store.prefix import PrefixStore
from tests.handler.kit import Line, together
from tests.support import VIRTUAL, fail_after


@pytest.mark.parametrize(
    "info",
    [
        RendezvousStoreInfo("host", 29500),
        RendezvousStoreInfo(master_addr="host", port=29500),
        RendezvousStoreInfo(addr="host", master_port=29500),
        RendezvousStoreInfo("host", master_port=29500),
    ],
    ids=["positional", "original", "aliases", "upstream"],
)
def test_address_and_port_go_by_both_of_their_names(info: RendezvousStoreInfo) -> None:
    assert info.master_addr == info.addr == "host"
    assert info.port == info.master_port == 29500
    assert (info.MASTER_ADDR_KEY, info.MASTER_PORT_KEY) == ("MASTER_ADDR", "MASTER_PORT")
    assert info == RendezvousStoreInfo("host", 29500)
    assert hash(info) == hash(RendezvousStoreInfo("host", 29500))
    assert info != RendezvousStoreInfo("host", 29501)
    assert info != ("host", 29500)
    assert pickle.loads(pickle.dumps(info)) == info
    assert "host" in repr(info)
    assert "29500" in repr(info)


@pytest.mark.parametrize(
    ("args", "options"),
    [((), {}), (("h",), {}), (("h", 1), {"addr": "i"}), (("h", 1), {"master_port": 2}), ((), {"port": 1})],
)
def test_an_address_without_a_port_or_with_two_is_refused(args: tuple, options: dict) -> None:
    with pytest.raises(TypeError, match="once"):
        RendezvousStoreInfo(*args, **options)


def test_the_published_value_is_one_piece_and_survives_the_way() -> None:
    """D3: nobody reads a new address with an old port."""
    info = RendezvousStoreInfo("fe80::1%eth0", 65535)
    assert RendezvousStoreInfo.decode(info.encode()) == info


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"host:1",
        RendezvousStoreInfo("h", 0).encode(),
        RendezvousStoreInfo("h", 65536).encode(),
        RendezvousStoreInfo("h", 1).encode().replace(b"\x01", b"\x02", 1),
        RendezvousStoreInfo("h", 1).encode() + b"x",
    ],
    ids=repr,
)
def test_a_damaged_value_is_a_state_error(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="damaged"):
        RendezvousStoreInfo.decode(data)


@VIRTUAL
async def test_all_ranks_agree_on_what_rank_0_publishes() -> None:
    async with MemoryStore() as store:
        with fail_after(5):
            infos = await together(
                *(lambda rank=rank: RendezvousStoreInfo.build(rank, store, "127.0.0.1") for rank in (2, 1, 0))
            )
        assert len(set(infos)) == 1
        assert infos[0].addr == "127.0.0.1"


@VIRTUAL
@pytest.mark.parametrize("port", [None, 0])
async def test_port_0_is_published_as_a_real_free_port(port: int | None) -> None:
    """D56."""
    async with MemoryStore() as store:
        info = await RendezvousStoreInfo.build(0, store, "127.0.0.1", port)
        assert 0 < info.port < 65536
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=info.port)
        await listener.aclose()


@VIRTUAL
async def test_a_given_port_is_published_as_it_is() -> None:
    async with MemoryStore() as store:
        assert (await RendezvousStoreInfo.build(0, store, "host", 29500)).port == 29500


@VIRTUAL
async def test_waiting_for_rank_0_is_bounded_and_says_so() -> None:
    """D31: one wait instead of a busy loop, and a time-out that names rank and store."""
    async with MemoryStore() as store:
        line = Line(store)
        began = anyio.current_time()
        with pytest.raises(RendezvousTimeoutError, match="rank 0 published nothing within 2 s.*rank 3.*memory"):
            await RendezvousStoreInfo.build(3, line, timeout=2)  # type: ignore[arg-type]
        assert anyio.current_time() - began == pytest.approx(2)
        assert len(line.calls) == 1


@VIRTUAL
async def test_a_store_that_fails_is_reported_as_such_and_at_once() -> None:
    """D31: a dead store is no "timed out"."""
    store = MemoryStore()
    await store.aclose()
    began = anyio.current_time()
    for rank in (0, 1):
        with pytest.raises(RendezvousConnectionError):
            await RendezvousStoreInfo.build(rank, store, "127.0.0.1")
    assert anyio.current_time() == began


@VIRTUAL
async def test_an_address_that_is_not_ours_is_an_error_that_names_it() -> None:
    """D37."""
    async with MemoryStore() as store:
        with pytest.raises(RendezvousConnectionError, match=r"192\.0\.2\.7.*local_addr"):
            await RendezvousStoreInfo.build(0, store, "192.0.2.7")
        assert await store.num_keys() == 0


@VIRTUAL
async def test_rounds_and_runs_do_not_see_each_others_address() -> None:
    """D3, R8: the key is under the prefix of the round's store; reading blocks rather than return an old one."""
    async with MemoryStore() as store:
        await RendezvousStoreInfo.build(0, PrefixStore("r/0.a", store), "host", 1)
        with pytest.raises(RendezvousTimeoutError):
            await RendezvousStoreInfo.build(1, PrefixStore("r/1.b", store), timeout=1)


@VIRTUAL
async def test_the_first_address_of_a_round_is_the_one_that_counts() -> None:
    async with MemoryStore() as store:
        first = await publish(store, RendezvousStoreInfo("a", 1))
        assert await publish(store, RendezvousStoreInfo("b", 2)) == first == RendezvousStoreInfo("a", 1)


@VIRTUAL
async def test_a_proposed_port_stays_ours_until_it_is_released() -> None:
    """D59, R71: nobody else is given it meanwhile."""
    info, reservation = await propose(RendezvousStoreInfo, "127.0.0.1", None)
    assert reservation is not None
    assert reservation.port == info.port
    ports = []
    for _ in range(20):
        _, other = await propose(RendezvousStoreInfo, "127.0.0.1", None)
        assert other is not None
        ports.append(other.port)
        other.close()
    assert info.port not in ports
    snapshot = RendezvousInfo(MemoryStore(), 0, 1, info, reservation=reservation)
    snapshot.release_port()
    snapshot.release_port()
    assert await propose(RendezvousStoreInfo, "host", 4000) == (RendezvousStoreInfo("host", 4000), None)


def test_a_snapshot_cannot_be_changed() -> None:
    """D16."""
    info = RendezvousInfo(MemoryStore(), 0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.rank = 1  # type: ignore[misc]
    assert (info.participants, info.wait_list, info.bootstrap_store_info) == ((), (), None)
    info.release_port()


def test_the_own_name_is_read_and_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """R40, R41: ``getfqdn`` costs 5 s on a host without DNS, and may answer ``localhost``."""

    def lookup(*args: object) -> None:
        raise AssertionError("looked up")

    for name in ("getfqdn", "gethostbyname", "getaddrinfo", "gethostbyaddr"):
        monkeypatch.setattr(f"socket.{name}", lookup)
    assert host_name()
