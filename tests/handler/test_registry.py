"""Which backend names exist."""

from __future__ import annotations

import logging
import threading
from importlib import metadata
from typing import Any

import pytest

from arendezvous.handler.base import RendezvousHandler
from arendezvous.handler.registry import COMMON_OPTIONS, ENTRY_POINT_GROUP, RendezvousHandlerRegistry
from arendezvous.params import RendezvousParameters
from tests.handler.test_base import Least


def parameters(backend: str = "least", **options: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, "host:1", "run", 1, 1, **options)


class Creator:
    """A creator that notes what it was given."""

    def __init__(self) -> None:
        self.given: list[RendezvousParameters] = []

    def __call__(self, params: RendezvousParameters) -> RendezvousHandler:
        self.given.append(params)
        return Least()


def test_a_creator_is_given_the_very_parameters() -> None:
    creator, params = Creator(), parameters()
    registry = RendezvousHandlerRegistry([("least", creator)])
    assert registry.create_handler(params).get_backend() == "least"
    assert creator.given == [params]
    assert creator.given[0] is params


def test_the_same_creator_may_be_registered_again_and_another_may_not() -> None:
    registry, one, two = RendezvousHandlerRegistry(), Creator(), Creator()
    registry.register("x", one)
    registry.register("x", one)
    with pytest.raises(ValueError, match="'x' is already registered with a different creator"):
        registry.register("x", two)
    assert registry.names() == ("x",)


def test_a_name_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="must be a non-empty string"):
        RendezvousHandlerRegistry().register("", Creator())


def test_an_unknown_backend_is_named_with_the_known_ones_and_a_hint() -> None:
    registry = RendezvousHandlerRegistry([("p10d", Creator()), ("static", Creator())])
    with pytest.raises(ValueError, match="'p10' is not registered") as caught:
        registry.create_handler(parameters("p10"))
    for part in ("p10d", "static", "register_backend"):
        assert part in str(caught.value)


def test_a_handler_of_another_backend_is_refused() -> None:
    registry = RendezvousHandlerRegistry([("other", Creator())])
    with pytest.raises(RuntimeError, match="'least' does not match the requested backend 'other'"):
        registry.create_handler(parameters("other"))


def test_a_misspelt_option_is_named_with_the_nearest() -> None:
    """D18: it does not vanish."""
    creator = Creator()
    creator.options = frozenset({"store_type"})  # type: ignore[attr-defined]
    registry = RendezvousHandlerRegistry([("least", creator)])
    for wrong, right in (("keepalive_interval", "keep_alive_interval"), ("store_tpye", "store_type")):
        with pytest.raises(ValueError, match=f"knows no option '{wrong}'; did you mean '{right}'"):
            registry.create_handler(parameters(**{wrong: 1}))
    assert not creator.given
    for name in COMMON_OPTIONS:
        registry.create_handler(parameters(**{name: 1}))


def test_a_creator_that_declares_no_options_takes_all() -> None:
    """api.md A.1."""
    RendezvousHandlerRegistry([("least", Creator())]).create_handler(parameters(anything=1))


def test_a_registry_is_whole_when_it_is_first_seen() -> None:
    """D53: a second thread never finds it half filled."""
    from arendezvous.handler.create import get_registry

    get_registry.cache_clear()
    seen: list[tuple[str, ...]] = []
    start = threading.Barrier(8)

    def look() -> None:
        start.wait()
        seen.append(get_registry().names())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {("c10d", "core", "memory", "p10d", "static")}


class Entry:
    """An entry point."""

    def __init__(self, name: str, creator: Any) -> None:
        self.name, self._creator = name, creator
        self.loaded = 0

    def load(self) -> Any:
        self.loaded += 1
        if isinstance(self._creator, Exception):
            raise self._creator
        return self._creator


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    entries: list[Entry] = []

    def entry_points(*, group: str) -> list[Entry]:
        assert group == ENTRY_POINT_GROUP == "arendezvous.backends"
        return entries

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return entries


def test_a_plug_in_is_found_when_its_name_is_asked_for_and_only_then(plug_ins: list[Entry]) -> None:
    """D53, api.md A.4."""
    plug_ins.append(Entry("least", Creator()))
    registry = RendezvousHandlerRegistry([("p10d", Creator())])
    assert plug_ins[0].loaded == 0
    assert registry.create_handler(parameters()).get_backend() == "least"
    assert registry.create_handler(parameters()).get_backend() == "least"
    assert plug_ins[0].loaded == 1
    assert registry.names() == ("least", "p10d")


def test_a_broken_plug_in_raises_when_asked_for_and_warns_otherwise(
    plug_ins: list[Entry], caplog: pytest.LogCaptureFixture
) -> None:
    """api.md A.4."""
    plug_ins += [Entry("broken", ImportError("no such module")), Entry("least", Creator())]
    registry = RendezvousHandlerRegistry()
    with caplog.at_level(logging.WARNING):
        assert registry.create_handler(parameters()).get_backend() == "least"
    assert "'broken'" in caplog.text
    assert "no such module" in caplog.text
    with pytest.raises(ValueError, match="'broken' is broken: no such module"):
        registry.create_handler(parameters("broken"))


def test_a_plug_in_does_not_replace_a_built_in_backend(plug_ins: list[Entry]) -> None:
    creator = Creator()
    plug_ins += [Entry("p10d", Creator()), Entry("least", Creator())]
    registry = RendezvousHandlerRegistry([("p10d", creator)])
    registry.create_handler(parameters())
    assert plug_ins[0].loaded == 0
    assert registry._creators["p10d"] is creator
