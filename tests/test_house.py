"""The house rules of design.md section 2 that tools do not check: what each module says, imports and is tested by."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import arendezvous

ROOT = Path(arendezvous.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
SCRIPTS = {"__main__.py"}

#: What of the standard library, and which event loops, may be used where; everything else may be used anywhere.
ALLOWED = {
    "asyncio": r"testing/|cli/",
    "trio": r"testing/|cli/",
    "uvloop": r"testing/|cli/",
    "socket": r"store/(server|client|hosting|dialer|ports)\.py|agent/",
    "threading": r"store/(adapters|file\w*)\.py|cli/story/leash\.py|sync/",
    "fcntl": r"store/(adapters|file\w*)\.py",
    "time": r"cli/|testing/|supervisor\.py|store/hostclock\.py",
    "random": r"handler/entropy\.py|testing/",
    "secrets": r"handler/entropy\.py",
    "signal": r"agent/|cli/|supervisor\.py",
    "subprocess": r"agent/|cli/|supervisor\.py",
    # Data from the network is hostile (D1): nothing that runs what it reads.
    "pickle": r"$^",
    "marshal": r"$^",
    "shelve": r"$^",
    "dill": r"$^",
    "cloudpickle": r"$^",
}
CALLS_THAT_RUN_DATA = {"eval", "exec", "compile"}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(), module)


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Top-level names of absolute imports and where they are; those for type checkers do not run."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno


def for_type_checkers(module: str) -> set[int]:
    """Lines under ``if TYPE_CHECKING:``."""
    lines: set[int] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def dotted(module: str) -> str:
    parts = ["arendezvous", *module.removesuffix(".py").split("/")]
    return ".".join(part for part in parts if part != "__init__")


# ---- modules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [m for m in MODULES if m not in SCRIPTS])
def test_a_module_says_what_it_is_and_lists_what_it_offers(module: str) -> None:
    """A docstring, and ``__all__`` as a tuple of names that exist."""
    assert ast.get_docstring(tree(module)), "no docstring"
    loaded = importlib.import_module(dotted(module))
    names = loaded.__all__
    assert isinstance(names, tuple)
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(loaded, name), f"{name} is in __all__ and nowhere else"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_uses_only_what_its_room_may(module: str) -> None:
    """Event loops, sockets, threads, clocks, randomness and processes each have their place (design.md 2)."""
    skip = for_type_checkers(module)
    wrong = [
        f"line {line}: {name}"
        for name, line in imports(module)
        if (places := ALLOWED.get(name.partition(".")[0])) is not None
        and line not in skip
        and not re.match(places, module)
    ]
    assert not wrong


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_its_neighbours_relatively(module: str) -> None:
    assert not [f"line {line}: {name}" for name, line in imports(module) if name.partition(".")[0] == "arendezvous"]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_runs_no_data(module: str) -> None:
    """D1."""
    calls = [node for node in ast.walk(tree(module)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [f"line {c.lineno}" for c in calls if isinstance(c.func, ast.Name) and c.func.id in CALLS_THAT_RUN_DATA]


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(("core/", "wire/"))])
def test_a_pure_module_neither_awaits_nor_logs_nor_asks_the_system(module: str) -> None:
    """core and wire: no IO, clock, randomness, async, logging."""
    assert not [n for n in ast.walk(tree(module)) if isinstance(n, (ast.AsyncFunctionDef, ast.Await))]
    impure = {"anyio", "asyncio", "logging", "os", "io", "pathlib", "socket", "time", "random", "secrets", "threading"}
    assert not {name.partition(".")[0] for name, _ in imports(module)} & impure


def test_every_module_has_a_test_module_in_the_same_place() -> None:
    """design.md 2: one test module per source module; packages' ``__init__`` are exempt."""
    missing = []
    for module in MODULES:
        path = Path(module)
        if path.name == "__init__.py" or module in SCRIPTS:
            continue
        if not (TESTS / path.parent / f"test_{path.name}").exists():
            missing.append(module)
    assert missing == []


# ---- public names -------------------------------------------------------------------------------------------------

PUBLIC = {name: getattr(arendezvous, name) for name in arendezvous.__all__ if not name.startswith("_")}
CLASSES = {n: o for n, o in PUBLIC.items() if inspect.isclass(o) and o.__module__.startswith("arendezvous")}
FUNCTIONS = {name: obj for name, obj in PUBLIC.items() if inspect.isfunction(obj)}


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A class's own public functions."""
    for name, member in vars(kind).items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def document(kind: type, name: str, function: Callable[..., Any]) -> str:
    """A method's docstring, with that of the method it refers to or replaces."""
    own = inspect.getdoc(function) or ""
    inherited = [vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)]
    referred = []
    if match := re.search(r"\(see :(?:meth|class):`~?(\w+)(?:\.(\w+))?`\)", own):
        target = PUBLIC.get(match[1])
        if target is not None and (match[2] or name) in vars(target):
            referred = [vars(target)[match[2] or name]]
    return "\n".join([own, *(inspect.getdoc(other) or "" for other in (*inherited, *referred))])


METHODS = [
    pytest.param(kind, name, function, id=f"{kind_name}.{name}")
    for kind_name, kind in CLASSES.items()
    for name, function in methods(kind)
]
PLAIN = [pytest.param(None, name, function, id=name) for name, function in FUNCTIONS.items()]
#: Their contract is the one of :class:`arendezvous.Store`, which documents each method; repeating it helps nobody.
STORES = tuple(CLASSES[name] for name in ("TCPStore", "FileStore", "MemoryStore", "PrefixStore"))


#: The key of a store call is the key.
SPEAKING = {"key", "keys", "value", "values"}


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name: str) -> None:
    obj = PUBLIC[name]
    assert isinstance(obj, str) or inspect.getdoc(obj)


@pytest.mark.parametrize(("kind", "name", "function"), [*METHODS, *PLAIN])
def test_a_public_callable_has_a_docstring(kind: type | None, name: str, function: Callable[..., Any]) -> None:
    assert inspect.getdoc(function), "no docstring"


@pytest.mark.parametrize(("kind", "name", "function"), [*METHODS, *PLAIN])
def test_a_public_callable_names_its_arguments(kind: type | None, name: str, function: Callable[..., Any]) -> None:
    """Google sections: each parameter under ``Args:``, or by its name in the text where that is short."""
    text = inspect.getdoc(function) or ""
    if kind is not None:
        text = document(kind, name, function)
        if issubclass(kind, STORES):
            text += document(CLASSES["Store"], name, vars(CLASSES["Store"]).get(name, function))
    given = parameters(function)
    if "Args:" not in text and len(given) < 2:
        return  # its one argument is what the sentence is about
    for argument in given:
        assert argument in SPEAKING or re.search(rf"\b{argument}\b", text), f"{argument} is not mentioned"


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_documents_its_constructor_and_attributes(name: str) -> None:
    kind = CLASSES[name]
    if "__init__" not in vars(kind) or getattr(kind, "_is_protocol", False):
        return
    text = inspect.getdoc(kind) or ""
    for argument in parameters(kind.__init__):
        if argument not in ("args", "kwargs"):
            assert re.search(rf"\b{argument}\b", text), f"{argument} is not mentioned"


@pytest.mark.parametrize(
    ("kind", "name", "function"),
    [p for p in [*METHODS, *PLAIN] if inspect.iscoroutinefunction(p.values[2])],  # type: ignore[arg-type]
)
def test_a_public_async_callable_says_what_cancelling_it_does(
    kind: type | None, name: str, function: Callable[..., Any]
) -> None:
    """*Cancellation* on the function, on what it overrides or refers to, or once for the whole class."""
    text = inspect.getdoc(function) or ""
    if kind is not None:
        text = document(kind, name, function) + "\n".join(inspect.getdoc(base) or "" for base in kind.__mro__[:-1])
    assert "Cancellation:" in text


@pytest.mark.parametrize(("kind", "name", "function"), [*METHODS, *PLAIN])
def test_a_public_callable_names_what_it_raises(kind: type | None, name: str, function: Callable[..., Any]) -> None:
    """Whatever its own body raises by name stands under ``Raises:``."""
    source = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = {
        node.exc.func.id
        for node in ast.walk(source)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
    }
    text = inspect.getdoc(function) or ""
    if kind is not None:
        text = document(kind, name, function) + (inspect.getdoc(kind) or "")
    # A helper that builds an error is not its name; the last two are no errors to a caller.
    raised = {name for name in raised if not name.startswith("_")} - {"AssertionError", "StopAsyncIteration"}
    assert not {error for error in raised if error not in text}
