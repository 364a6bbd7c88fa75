"""The exception tree is the one that its docstring draws, and exceptions cross process borders."""

from __future__ import annotations

import copy
import pickle
import re
from datetime import timedelta
from types import SimpleNamespace

import pytest

from arendezvous import errors
from arendezvous.params import RendezvousParameters, RendezvousSettings

CLASSES = [getattr(errors, name) for name in errors.__all__]


def drawn() -> dict[str, tuple[str, set[str]]]:
    """Class, its parent in the drawing, and the builtins that the drawing calls "also"."""
    found: dict[str, tuple[str, set[str]]] = {}
    path: list[str] = []
    last = ""
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([│├└─ ]*)(\w+Error)\b(.*)", line):
            branch, last, rest = match.groups()
            depth = len(branch) // 4
            path = [*path[:depth], last]
            found[last] = (path[depth - 1] if depth else "Exception", set())
        elif line.startswith("    "):
            rest = line
        else:
            continue
        if also := re.search(r"\(also ([^)]*)\)", rest):
            found[last][1].update(re.findall(r"\w+", also[1]))
    return found


def test_the_tree_is_the_one_that_is_drawn() -> None:
    tree = drawn()
    assert set(tree) == set(errors.__all__)
    for cls in CLASSES:
        parent, also = tree[cls.__name__]
        assert cls.__bases__[0].__name__ == parent, cls
        assert {base.__name__ for base in cls.__bases__[1:]} == also, cls


def test_every_error_is_a_rendezvous_error() -> None:
    assert all(issubclass(cls, errors.RendezvousError) for cls in CLASSES)
    assert not issubclass(errors.RendezvousError, (OSError, ValueError, RuntimeError))


def test_a_store_timeout_is_caught_as_any_of_its_documented_bases() -> None:
    assert errors.StoreTimeoutError.__bases__ == (errors.RendezvousTimeoutError, TimeoutError, RuntimeError)
    for base in (errors.RendezvousTimeoutError, TimeoutError, RuntimeError):
        with pytest.raises(base, match="nobody wrote 'k'"):
            raise errors.StoreTimeoutError("nobody wrote 'k'")


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not errors.RendezvousExhaustedError])
def test_a_message_survives_pickle_and_copy(cls: type[errors.RendezvousError]) -> None:
    error = cls("run 'r': 2/4 nodes")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is cls
        assert str(twin) == "run 'r': 2/4 nodes"


@pytest.mark.parametrize("detail", ["", "Run 'r' at h:1: 2/3 nodes after 5.0 s; missing: a_1_0."])
@pytest.mark.parametrize("timeout", [timedelta(seconds=5), 5.0])
def test_an_exhausted_join_keeps_what_it_was_about_across_processes(detail: str, timeout: timedelta | float) -> None:
    config = RendezvousSettings("r", 3, 4)
    error = errors.RendezvousExhaustedError(config, timeout, detail)
    text = f"The rendezvous join window elapsed without reaching min_nodes=3 within {timeout}."
    for twin in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert issubclass(type(twin), errors.RendezvousTimeoutError)
        assert (twin.config, twin.timeout, twin.detail) == (config, timeout, detail)
        assert str(twin) == (f"{text} {detail}" if detail else text)


def test_an_exhausted_join_takes_parameters_or_anything_with_min_nodes() -> None:
    params = RendezvousParameters("p10d", "h:1", "r", 2, 4, attributes={"gpus": 8}, join_timeout=5)
    twin = pickle.loads(pickle.dumps(errors.RendezvousExhaustedError(params, params.timeout.join)))
    assert twin.config == params
    assert "min_nodes=2 within 0:00:05" in str(twin)
    assert "min_nodes=7 within" in str(errors.RendezvousExhaustedError(SimpleNamespace(min_nodes=7), 1))
    assert "min_nodes=? within" in str(errors.RendezvousExhaustedError(object(), 1))
