"""From parameters to a handler with a store."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

import arendezvous.handler.create as create
from arendezvous.errors import RendezvousConnectionError, RendezvousError, RendezvousTimeoutError
from arendezvous.handler.base import RendezvousHandler
from arendezvous.handler.create import create_handler, get_registry, open_store, register_backend
from arendezvous.handler.dynamic import DynamicRendezvousHandler
from arendezvous.handler.static import StaticTCPRendezvous
from arendezvous.params import RendezvousParameters
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from tests.handler.kit import CALM, FAST, outcome, together, until
from tests.support import SLOW, VIRTUAL, fail_after


def parameters(
    backend: str = "p10d", endpoint: str = "127.0.0.1:0", low: int = 1, high: int = 1, **options: Any
) -> RendezvousParameters:
    options = {**({} if backend == "memory" else {"linger": 1}), **CALM, **options}
    return RendezvousParameters(backend, endpoint, options.pop("run_id", "run"), low, high, **options)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.create_server((host, 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


async def world_of(count: int, params: RendezvousParameters) -> list[Any]:
    """``count`` handlers of one set of parameters, the first of which perhaps hosts: their infos."""
    done = anyio.Event()
    infos: list[Any] = []

    async def agent() -> None:
        async with create_handler(params) as handler:
            infos.append(await handler.next_rendezvous())
            if len(infos) == count:
                done.set()
            await done.wait()

    with fail_after(30):
        await together(*[agent] * count)
    return infos


@pytest.mark.parametrize("backend", ["p10d", "c10d", "core"])
async def test_nodes_meet_at_an_endpoint_of_this_machine_without_a_server(backend: str) -> None:
    """Who comes first hosts; the others are clients."""
    infos = await world_of(3, parameters(backend, f"127.0.0.1:{free_port()}", 3, 3))
    assert sorted(outcome(infos)) == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
    assert {node.addr for node in infos[0].participants} == {"127.0.0.1"}


async def test_nodes_meet_at_a_server_that_is_there_already() -> None:
    async with TCPStoreServer() as server:
        infos = await world_of(2, parameters(endpoint=server.endpoint, low=2, high=2))
        assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]


async def test_nodes_of_one_process_meet_in_memory() -> None:
    params = parameters("memory", f"here{os.urandom(8).hex()}", 2, 2, local_addr="127.0.0.1")
    infos = await world_of(2, params)
    create.memory_stores.pop(params.endpoint)
    assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]


async def test_nodes_meet_in_a_file(tmp_path: Path) -> None:
    params = parameters(endpoint=str(tmp_path / "store"), low=2, high=2, store_type=" File ", local_addr="127.0.0.1")
    infos = await world_of(2, params)
    assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]


async def test_nodes_without_an_endpoint_meet_in_a_file_of_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D40: the same run id is the same file, whatever it contains."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    params = parameters(endpoint="", low=2, high=2, store_type="file", local_addr="127.0.0.1", run_id="a/../b c")
    infos = await world_of(2, params)
    assert {i.world_size for i in infos} == {2}
    assert all(path.name.startswith("arendezvous_a%2F..%2Fb%20c") for path in tmp_path.iterdir())


def test_the_registry_holds_the_built_in_backends_and_takes_others() -> None:
    registry = get_registry()
    assert get_registry() is registry
    assert registry.names()[:5] == ("c10d", "core", "memory", "p10d", "static")

    def creator(params: RendezvousParameters) -> RendezvousHandler:
        raise NotImplementedError

    register_backend("mine-in-test-create", creator)
    assert "mine-in-test-create" in registry.names()
    del registry._creators["mine-in-test-create"]


def test_each_backend_makes_its_own_handler_and_keeps_every_option() -> None:
    """D18, R89: keep-alive, time-outs and the rest reach the handler under every name."""
    options = {
        "keep_alive_interval": 1122,
        "heartbeat_timeout": 321,
        "keep_alive_max_attempt": 5,
        "join_timeout": 7.5,
        "last_call_timeout": "8",
        "close_timeout": 9,
        "rank_order": "natural",
        "exit_barrier": 11,
    }
    for backend in ("p10d", "c10d", "core", "memory"):
        handler = create_handler(RendezvousParameters(backend, "127.0.0.1:1", "run", 2, 5, **options))
        assert isinstance(handler, DynamicRendezvousHandler)
        assert (handler.get_backend(), handler.get_run_id(), handler.exit_barrier) == (backend, "run", 11)
        settings = handler.settings
        assert (settings.min_nodes, settings.max_nodes, settings.rank_order) == (2, 5, "natural")
        assert (settings.keep_alive_interval.total_seconds(), settings.keep_alive_max_attempt) == (1122, 5)
        seconds = [getattr(settings.timeout, n).total_seconds() for n in ("join", "last_call", "close", "heartbeat")]
        assert seconds == [7.5, 8, 9, 321]
    assert isinstance(
        create_handler(RendezvousParameters("static", "127.0.0.1:1", "run", 1, 1, node_rank=0)), StaticTCPRendezvous
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store_type": "ftp"}, "Invalid store type 'ftp'. Supported values are 'file' and 'tcp'"),
        ({"read_timeout": 0}, "read timeout must be a positive"),
        ({"read_timeout": -10}, "read_timeout"),
        ({"keep_alive_interval": 0}, "keep-alive interval"),
        ({"keep_alive_max_attempt": 0}, "keep_alive_max_attempt"),
        ({"keep_alive_max_attempt": -3}, "keep_alive_max_attempt"),
        ({"join_timeout": 0}, "join timeout"),
        ({"rank_order": "alphabetic"}, "rank order 'alphabetic'"),
        ({"keepalive_interval": 1}, "did you mean 'keep_alive_interval'"),
        ({"endpoint": "host:99999"}, "99999"),
        ({"endpoint": "host:"}, "port"),
        ({"endpoint": "http://host:80"}, "host"),
        ({"backend": "p1od"}, "'p1od' is not registered"),
        ({"notify_lost_nodes": "maybe"}, "notify_lost_nodes"),
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_before_anything_is_connected(changes: dict[str, Any], message: str) -> None:
    """D18, D19, D22, D23, R46, R89: an error that names the value."""
    options = {"backend": "p10d", "endpoint": "127.0.0.1:29400", "run_id": "run", **changes}
    with pytest.raises(ValueError, match=message):
        create_handler(RendezvousParameters(**options))


async def test_the_published_port_of_endpoint_port_0_is_a_real_one() -> None:
    """R41: one node, any free port."""
    async with create_handler(parameters(endpoint="localhost:0")) as handler:
        assert isinstance(handler, DynamicRendezvousHandler)
        assert not handler.store.endpoint.endswith(":0")
        info = await handler.next_rendezvous()
        assert info.world_size == 1


async def test_two_jobs_on_one_host_get_different_ports() -> None:
    """R70, D3: no fixed default when port 0 is asked for; and no value of one run in another."""
    async with create_handler(parameters(endpoint="127.0.0.1:0")) as one:
        async with create_handler(parameters(endpoint="127.0.0.1:0")) as two:
            assert isinstance(one, DynamicRendezvousHandler)
            assert isinstance(two, DynamicRendezvousHandler)
            assert one.store.endpoint != two.store.endpoint
            infos = [await one.next_rendezvous(), await two.next_rendezvous()]
            assert outcome(infos) == [(0, 0, 1), (0, 0, 1)]


async def test_two_runs_on_one_store_do_not_see_each_other() -> None:
    """D3."""
    async with TCPStoreServer() as server:
        one, two = (parameters(endpoint=server.endpoint, run_id=run_id) for run_id in ("job", "job/1"))
        infos = [*(await world_of(1, one)), *(await world_of(1, two))]
        assert outcome(infos) == [(0, 0, 1), (0, 0, 1)]


async def test_a_host_by_demand_reports_that_it_cannot_serve() -> None:
    """B 1.8: explicit ``is_host`` never falls back on somebody else's server."""
    async with TCPStoreServer() as server:
        with pytest.raises(RendezvousConnectionError, match=str(server.port)):
            async with create_handler(parameters(endpoint=server.endpoint, is_host=True)):
                pass


async def test_who_is_told_not_to_host_waits_for_a_host_and_names_the_endpoint() -> None:
    """R37: bounded by the read time-out."""
    port = free_port()
    with fail_after(20), pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{port}"):
        async with create_handler(parameters(endpoint=f"127.0.0.1:{port}", is_host=False, read_timeout=0.5)):
            pass


async def test_an_endpoint_that_no_node_believes_to_be_its_own_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """R37: a virtual address is nobody's, and only the operator knows who shall serve."""

    async def no(host: str) -> bool:
        return False

    monkeypatch.setattr(create, "is_this_machine", no)
    with fail_after(20), pytest.raises(RendezvousConnectionError, match=r"127\.0\.0\.1:1.*set is_host=true"):
        async with create_handler(parameters(endpoint="127.0.0.1:1", read_timeout=0.3)):
            pass


async def test_a_client_waits_for_a_server_that_comes_up_later() -> None:
    port = free_port()
    async with anyio.create_task_group() as tg:
        entered = anyio.Event()

        async def client() -> None:
            async with create_handler(parameters(endpoint=f"127.0.0.1:{port}", is_host=False, read_timeout=20)):
                entered.set()

        tg.start_soon(client)
        await anyio.sleep(0.3)
        async with TCPStoreServer("127.0.0.1", port):
            with fail_after(20):
                await entered.wait()
                await anyio.sleep(0.1)


async def test_a_name_that_only_this_host_understands_is_refused_for_a_job_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """design.md 3: the advice is ``bind`` or a literal address."""

    async def yes(host: str) -> bool:
        return True

    monkeypatch.setattr(create, "is_this_machine", yes)
    monkeypatch.setattr(create, "loopback_only", yes)
    with pytest.raises(RendezvousConnectionError, match=r"'my-host'.*bind=0\.0\.0\.0"):
        async with create_handler(parameters(endpoint="my-host:0", low=1, high=2)):
            pass


async def test_a_hosting_handler_lingers_until_the_other_clients_have_gone() -> None:
    """R20, D34: the one that hosts ends first; the others read what they still need."""
    port = free_port()
    params = parameters(endpoint=f"127.0.0.1:{port}", low=2, high=2, linger=20)
    steps: list[str] = []
    async with anyio.create_task_group() as tg:
        joined = anyio.Event()
        leaving = anyio.Event()

        async def host() -> None:
            async with create_handler(params) as handler:
                await handler.next_rendezvous()
                await joined.wait()
                leaving.set()
            steps.append("host is gone")

        async def client() -> None:
            await anyio.sleep(0.2)
            async with create_handler(params.replace(is_host=False)) as handler:
                info = await handler.next_rendezvous()
                joined.set()
                await leaving.wait()
                await anyio.sleep(0.5)
                await info.store.set("last", b"words")
                assert await info.store.get("last") == b"words"
                steps.append("client is done")

        with fail_after(30):
            tg.start_soon(host)
            tg.start_soon(client)
            await until(lambda: len(steps) == 2)
    assert steps == ["client is done", "host is gone"]


async def test_a_host_lingers_no_longer_than_it_is_told_to() -> None:
    """R20: at most its configured linger, and the listener is closed (D51)."""
    params = parameters(endpoint=f"127.0.0.1:{free_port()}", low=1, high=2, linger=0.3)
    async with anyio.create_task_group() as tg:
        left = anyio.Event()

        async def host() -> None:
            async with create_handler(params):
                await ready.wait()
            left.set()

        ready = anyio.Event()
        tg.start_soon(host)
        await anyio.sleep(0.2)
        host_name, _, port = params.endpoint.partition(":")
        with fail_after(20):
            async with TCPStore(host_name, int(port), connect_timeout=10 * SLOW):
                ready.set()
                await left.wait()
            with socket.socket() as sock:
                assert sock.connect_ex((host_name, int(port))) == errno.ECONNREFUSED


async def test_a_cancelled_host_does_not_linger() -> None:
    params = parameters(endpoint=f"127.0.0.1:{free_port()}", low=1, high=2, linger=600)
    host, _, port = params.endpoint.partition(":")
    ready = anyio.Event()
    async with anyio.create_task_group() as tg:

        async def serve() -> None:
            async with create_handler(params):
                ready.set()
                await anyio.sleep_forever()

        async def client() -> None:
            async with TCPStore(host, int(port)):
                connected.set()
                await anyio.sleep_forever()

        connected = anyio.Event()
        with fail_after(20):
            tg.start_soon(serve)
            await ready.wait()
            tg.start_soon(client)
            await connected.wait()
            tg.cancel_scope.cancel()


async def test_the_library_reads_no_environment_behind_its_users_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md A.1: only ``from_env`` does."""
    monkeypatch.setenv("PET_RDZV_CONF", "keep_alive_interval=99")
    monkeypatch.setenv("PET_NNODES", "7")
    settings = create_handler(RendezvousParameters("p10d", "127.0.0.1:0", "run")).settings
    assert (settings.max_nodes, settings.keep_alive_interval.total_seconds()) == (1, 5)


@VIRTUAL
async def test_a_store_can_be_had_without_a_handler() -> None:
    params = RendezvousParameters("p10d", "127.0.0.1:0", "run", linger=0, **FAST)
    async with open_store(params) as (store, address):
        await store.set("k", b"v")
        assert await store.get("k") == b"v"
        assert address == "127.0.0.1"


async def test_an_unreachable_store_path_is_a_connection_error(tmp_path: Path) -> None:
    """R85: at once, whatever is wrong with it."""
    for path in (tmp_path / "no" / "such" / "dir" / "store", tmp_path):
        with fail_after(10), pytest.raises((RendezvousError, RendezvousTimeoutError)):
            async with create_handler(parameters(endpoint=str(path), store_type="file", local_addr="127.0.0.1")) as h:
                await h.next_rendezvous()
