"""Parameters: the signature, what is refused in which words, options, the environment, copies."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import math
import pickle
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.params import (
    MAX_ATTRIBUTES,
    MAX_ATTRIBUTES_BYTES,
    MAX_NODES,
    RendezvousParameters,
    RendezvousTimeout,
)


def params(**options: Any) -> RendezvousParameters:
    return RendezvousParameters("p10d", "host:29400", "run", **options)


def label(value: object) -> str:
    """Test ids that tell 1 from "1"."""
    return ascii(value)[:40]


class Foreign:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Foreign({self.value})"

    def __index__(self) -> int:
        return self.value


def test_the_signature_is_the_documented_one() -> None:
    signature = inspect.signature(RendezvousParameters)
    assert [(p.name, p.kind.name, p.default) for p in signature.parameters.values()] == [
        ("backend", "POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        ("endpoint", "POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        ("run_id", "POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        ("min_nodes", "POSITIONAL_OR_KEYWORD", 1),
        ("max_nodes", "POSITIONAL_OR_KEYWORD", 1),
        ("local_addr", "POSITIONAL_OR_KEYWORD", None),
        ("node_rank", "KEYWORD_ONLY", None),
        ("local_world_size", "KEYWORD_ONLY", 1),
        ("attributes", "KEYWORD_ONLY", None),
        ("config", "KEYWORD_ONLY", None),
        ("options", "VAR_KEYWORD", inspect.Parameter.empty),
    ]


def test_what_was_given_can_be_read() -> None:
    made = RendezvousParameters(
        "p10d",
        "host:1",
        "run",
        2,
        4,
        "10.0.0.1",
        node_rank=3,
        local_world_size=8,
        attributes={"gpus": 8},
        config={"a": "1"},
        b=2,
    )
    assert (made.backend, made.endpoint, made.run_id) == ("p10d", "host:1", "run")
    assert (made.min_nodes, made.max_nodes, made.local_addr) == (2, 4, "10.0.0.1")
    assert (made.node_rank, made.local_world_size, made.attributes) == (3, 8, {"gpus": 8})
    assert made.config == {"a": "1", "b": 2}
    assert made.timeout == RendezvousTimeout()


def test_the_defaults_are_the_documented_ones() -> None:
    made = params()
    assert (made.min_nodes, made.max_nodes, made.local_addr, made.node_rank) == (1, 1, None, None)
    assert (made.local_world_size, made.attributes, made.config) == (1, {}, {})
    assert RendezvousParameters("memory", None, "run").endpoint == ""
    assert params(local_addr="").local_addr is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"backend": ""}, "The rendezvous backend name must be a non-empty string."),
        ({"backend": None}, "The rendezvous backend name must be a non-empty string."),
        ({"run_id": ""}, "The run id must be a non-empty string."),
        ({"run_id": " \t"}, "The run id must be a non-empty string."),
        ({"min_nodes": 0}, "The minimum number of rendezvous nodes (0) must be greater than zero."),
        ({"min_nodes": -1}, "The minimum number of rendezvous nodes (-1) must be greater than zero."),
        (
            {"min_nodes": 3, "max_nodes": 2},
            (
                "The maximum number of rendezvous nodes (2) must be greater than or equal to the minimum number of "
                "rendezvous nodes (3)."
            ),
        ),
        ({"max_nodes": MAX_NODES + 1}, "The maximum number of rendezvous nodes (100001) must be at most 100000."),
        ({"node_rank": -1}, "node_rank (-1) must be at least 0 and at most 1000000."),
        ({"local_world_size": 0}, "local_world_size (0) must be at least 1 and at most 1000000."),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_number(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as info:
        RendezvousParameters(**{"backend": "p10d", "endpoint": "h", "run_id": "r", **changes})
    assert str(info.value) == text


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": 1},
        {"endpoint": 29400},
        {"run_id": 7},
        {"run_id": None},
        {"min_nodes": "2"},
        {"min_nodes": True},
        {"max_nodes": 2.0},
        {"max_nodes": None},
        {"local_addr": 1},
        {"node_rank": "0"},
        {"node_rank": True},
        {"local_world_size": 1.5},
        {"attributes": ["gpus"]},
        {"attributes": {1: "x"}},
        {"attributes": {"x": None}},
        {"attributes": {"x": [1]}},
        {"attributes": {"x": b"1"}},
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error_that_names_it(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(TypeError, match=name.removesuffix("s")):
        RendezvousParameters(**{"backend": "p10d", "endpoint": "h", "run_id": "r", **changes})


def test_positions_are_never_guessed() -> None:
    # D20: these two were read as an address and a rank.
    with pytest.raises(TypeError, match="min_nodes"):
        RendezvousParameters("b", "e", "r", "2", "4")  # type: ignore[arg-type]
    assert RendezvousParameters("b", "e", "r", 2, max_nodes=4).max_nodes == 4
    with pytest.raises(TypeError):
        RendezvousParameters("b", "e", "r", 1, 1, None, 0)  # type: ignore[call-arg]


def test_integers_of_other_libraries_are_taken() -> None:
    made = RendezvousParameters("b", "e", "r", Foreign(2), Foreign(4), node_rank=Foreign(1))  # type: ignore[arg-type]
    assert (made.min_nodes, made.max_nodes, made.node_rank) == (2, 4, 1)
    assert type(made.min_nodes) is int


@pytest.mark.parametrize(
    "run_id", ["a", "0", "none", "job/1", "a b", "run=1,x", "läuft", "任务", "👩‍💻", "..", "%2F", "x" * 500]
)
def test_a_run_id_is_any_printable_text(run_id: str) -> None:
    assert RendezvousParameters("b", "e", run_id).run_id == run_id


@pytest.mark.parametrize("run_id", ["a\n", "\x00", "a\x7fb", "a\x85b", "a\u2028b", "\ud800"])
def test_a_run_id_with_control_characters_is_refused(run_id: str) -> None:
    with pytest.raises(ValueError, match="must be printable text"):
        RendezvousParameters("b", "e", run_id)


@pytest.mark.parametrize("addr", ["host", "10.0.0.1", "fd00::1", "fe80::1%eth0", "x" * 64, "a.b.example."])
def test_an_own_address_is_kept_as_it_is(addr: str) -> None:
    assert params(local_addr=addr).local_addr == addr


@pytest.mark.parametrize("addr", ["host:80", "[::1]", "a b", " ", "a\n", "http://a", "x" * 256])
def test_an_own_address_with_more_than_the_address_is_refused(addr: str) -> None:
    with pytest.raises(ValueError, match="local_addr"):
        params(local_addr=addr)


class TestAttributes:
    def test_are_copied_and_read_only(self) -> None:
        given_: dict[str, Any] = {"role": "trainer", "gpus": 8, "share": 0.5, "spot": True}
        made = params(attributes=given_)
        given_.clear()
        assert made.attributes == {"role": "trainer", "gpus": 8, "share": 0.5, "spot": True}
        assert made.attributes["spot"] is True
        with pytest.raises(TypeError):
            made.attributes["gpus"] = 1  # type: ignore[index]

    def test_are_kept_as_plain_values(self) -> None:
        class Role(enum.StrEnum):
            TRAINER = "trainer"

        class Count(enum.IntEnum):
            EIGHT = 8

        kept = params(attributes={Role.TRAINER: Role.TRAINER, "n": Count.EIGHT}).attributes
        assert [(type(k), k, type(v), v) for k, v in kept.items()] == [
            (str, "trainer", str, "trainer"),
            (str, "n", int, 8),
        ]

    def test_take_a_kibibyte_and_not_a_byte_more(self) -> None:
        room = MAX_ATTRIBUTES_BYTES - len(msgspec.msgpack.encode({"k": "x" * 900})) + 900
        assert len(params(attributes={"k": "x" * room}).attributes["k"]) == room  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="at most 1024 bytes encoded, not 1025"):
            params(attributes={"k": "x" * (room + 1)})

    def test_are_few(self) -> None:
        assert len(params(attributes={f"k{i}": i for i in range(MAX_ATTRIBUTES)}).attributes) == MAX_ATTRIBUTES
        with pytest.raises(ValueError, match="at most 64 attributes, not 65"):
            params(attributes={f"k{i}": i for i in range(MAX_ATTRIBUTES + 1)})

    @pytest.mark.parametrize("value", [math.nan, math.inf, 2**64, -(2**63) - 1, "\ud800"])
    def test_hold_only_what_every_peer_can_read(self, value: Any) -> None:
        with pytest.raises(ValueError, match="attribute"):
            params(attributes={"k": value})
        if isinstance(value, str):
            with pytest.raises(ValueError, match="attribute"):
                params(attributes={value: 1})


class TestOptions:
    def test_a_keyword_wins_over_config(self) -> None:
        assert params(config={"a": 1, "b": 2}, a=3).config == {"a": 3, "b": 2}

    def test_config_is_a_copy_from_which_options_can_be_removed(self) -> None:
        config = {"a": 1}
        made = params(config=config)
        made.config.pop("a")
        assert made.get("a") is None
        assert config == {"a": 1}

    def test_get_gives_the_value_or_the_default(self) -> None:
        made = params(a="x")
        assert (made.get("a"), made.get("b"), made.get("b", 7)) == ("x", None, 7)

    def test_bounds_in_config_replace_arguments_left_alone_and_are_checked(self) -> None:
        # D21: they replaced validated values without being validated.
        made = params(config={"min_nodes": "2", "max_nodes": 4})
        assert (made.min_nodes, made.max_nodes, made.config) == (2, 4, {})
        made = params(min_nodes=3, max_nodes=5, config={"min_nodes": 2, "max_nodes": 4})
        assert (made.min_nodes, made.max_nodes) == (3, 5)
        for config in ({"min_nodes": 0}, {"min_nodes": -5}, {"min_nodes": 9, "max_nodes": 4}, {"max_nodes": "many"}):
            with pytest.raises(ValueError):
                params(config=config)

    @pytest.mark.parametrize(
        "value", [True, 1, "1", "true", "tRue", "T", "t", "yes", "yEs", "Y", "y", "TRUE"], ids=label
    )
    def test_true_in_its_spellings(self, value: Any) -> None:
        assert params(flag=value).get_as_bool("flag") is True

    @pytest.mark.parametrize(
        "value", [False, 0, "0", "false", "faLse", "F", "f", "no", "No", "N", "n", "FALSE"], ids=label
    )
    def test_false_in_its_spellings(self, value: Any) -> None:
        assert params(flag=value).get_as_bool("flag", True) is False

    @pytest.mark.parametrize(
        "value",
        [
            2,
            -1,
            1.0,
            0.0,
            "",
            " true ",
            "on",
            "off",
            "01",
            "Flse",
            "Ture",
            "g",
            "4",
            "_",
            "truefalse",
            "yeſ",
            b"1",
            [],
            (),
        ],
        ids=label,
    )
    def test_what_is_no_boolean_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError) as info:
            params(flag=value).get_as_bool("flag", True)
        text = "The rendezvous configuration option 'flag' does not represent a valid boolean value."
        assert str(info.value) == text
        assert info.value.__notes__ == [f"Its value is {value!r}."]

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("12", 12), (" 12 ", 12), ("-5", -5), ("+5", 5), ("0", 0), ("007", 7), (7, 7), (-7, -7), (Foreign(3), 3)],
        ids=label,
    )
    def test_an_integer_is_read(self, value: Any, expected: int) -> None:
        got = params(n=value).get_as_int("n")
        assert got == expected
        assert type(got) is int

    @pytest.mark.parametrize(
        "value",
        [
            True,
            False,
            3.9,
            5.0,
            "1_000",
            "3.9",
            "",
            " ",
            "0x10",
            [1],
            math.inf,
            math.nan,
            "inf",
            "a",
            "0a",
            "3b",
            "abc",
            b"7",
            "٣",
            "1 2",
            "--1",
            timedelta(1),
            "9" * 5000,
        ],
        ids=label,
    )
    def test_what_is_no_integer_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError) as info:
            params(n=value).get_as_int("n", 1)
        text = "The rendezvous configuration option 'n' does not represent a valid integer value."
        assert str(info.value) == text

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("0.5", 0.5),
            (" 12 ", 12.0),
            ("5.", 5.0),
            (".5", 0.5),
            ("1e3", 1000.0),
            ("2.5E-1", 0.25),
            (0, 0.0),
            (3, 3.0),
            (1.25, 1.25),
            (timedelta(milliseconds=1500), 1.5),
        ],
        ids=label,
    )
    def test_a_duration_is_read_in_seconds(self, value: Any, expected: float) -> None:
        got = params(s=value).get_as_seconds("s")
        assert got == expected
        assert type(got) is float

    @pytest.mark.parametrize(
        "value",
        [True, "", "x", "5s", "1_0", "0x1", "nan", "inf", "1e999", math.nan, math.inf, 10**400, [1], b"1", "1,5", "٣"],
        ids=label,
    )
    def test_what_is_no_duration_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match="option 's' does not represent a valid duration value"):
            params(s=value).get_as_seconds("s", 1.0)

    @pytest.mark.parametrize("value", [-1, "-0.5", timedelta(seconds=-1)])
    def test_a_negative_duration_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"'s' .* must not be negative"):
            params(s=value).get_as_seconds("s")

    def test_a_missing_option_and_none_give_the_default(self) -> None:
        for made in (params(), params(x=None)):
            assert made.get_as_bool("x") is None
            assert made.get_as_bool("x", False) is False
            assert made.get_as_int("x") is None
            assert made.get_as_int("x", 7) == 7
            assert made.get_as_seconds("x") is None
            assert made.get_as_seconds("x", 0.5) == 0.5

    @given(st.integers(-(10**30), 10**30), st.sampled_from(["", " ", "  "]))
    def test_every_decimal_integer_is_read_back(self, number: int, blanks: str) -> None:
        assert params(n=f"{blanks}{number}{blanks}").get_as_int("n") == number

    @given(st.one_of(st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.binary(max_size=3), st.none()))
    def test_any_value_is_read_or_a_value_error(self, value: Any) -> None:
        made = params(x=value)
        for read in (made.get_as_bool, made.get_as_int, made.get_as_seconds):
            try:
                read("x")
            except ValueError:
                continue


class TestCopies:
    def test_equality_sees_everything(self) -> None:
        # D21: p(2..4) was equal to p(1..8).
        assert params(min_nodes=2, max_nodes=4) == params(min_nodes=2, max_nodes=4)
        assert params(min_nodes=2, max_nodes=4) != params(min_nodes=1, max_nodes=8)
        assert params(a=1) != params(a=2)
        assert params(attributes={"a": 1}) != params()
        assert "min_nodes=2, max_nodes=4" in repr(params(min_nodes=2, max_nodes=4))

    def test_an_unhashable_option_breaks_neither_equality_nor_hash(self) -> None:
        one, other = params(a=[1], b={"c": set()}), params(a=[1], b={"c": set()})
        assert one == other
        assert hash(one) == hash(other)
        assert len({one, other, params(a=[2])}) == 2

    def test_it_is_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            params().run_id = "other"  # type: ignore[misc]

    @pytest.mark.parametrize("replace", [dataclasses.replace, RendezvousParameters.replace], ids=["function", "method"])
    def test_replacing_one_value_keeps_the_others(self, replace: Any) -> None:
        # D21: replacing the run id put the bounds back to 1 and 1.
        made = params(min_nodes=2, max_nodes=4, node_rank=1, attributes={"gpus": 8}, join_timeout="7", opaque=[1])
        moved = replace(made, run_id="other")
        assert moved.run_id == "other"
        assert (moved.min_nodes, moved.max_nodes, moved.node_rank, moved.attributes) == (2, 4, 1, {"gpus": 8})
        assert moved.config == {"join_timeout": "7", "opaque": [1]}
        assert moved.config is not made.config
        assert replace(moved, run_id="run") == made

    def test_replacing_takes_options_and_checks(self) -> None:
        made = params(min_nodes=2, max_nodes=4, a=1, b=2)
        assert made.replace(a=3, min_nodes=1).config == {"a": 3, "b": 2}
        assert made.replace(a=3, min_nodes=1).min_nodes == 1
        assert made.replace(config={}).config == {}
        with pytest.raises(ValueError, match=r"\(1\) must be greater than or equal .* \(2\)"):
            made.replace(max_nodes=1)

    def test_pickle_and_deepcopy_give_an_equal_object(self) -> None:
        made = params(min_nodes=2, max_nodes=4, attributes={"gpus": 8}, a=[1])
        for twin in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
            assert twin == made
            assert twin.attributes == {"gpus": 8}
            assert twin.timeout == made.timeout


class TestFromEnv:
    def test_reads_the_variables_of_torchrun(self) -> None:
        made = RendezvousParameters.from_env(
            {
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": "host:29500",
                "PET_RDZV_ID": "job-7",
                "PET_RDZV_CONF": "join_timeout=7, is_host=1",
                "PET_NNODES": "2:4",
                "PET_NODE_RANK": "1",
                "PET_LOCAL_ADDR": "10.0.0.1",
                "PET_NPROC_PER_NODE": "8",
            }
        )
        assert made == RendezvousParameters(
            "c10d",
            "host:29500",
            "job-7",
            2,
            4,
            "10.0.0.1",
            node_rank=1,
            local_world_size=8,
            config={"join_timeout": "7", "is_host": "1"},
        )

    def test_needs_nothing_but_the_run_id(self) -> None:
        assert RendezvousParameters.from_env({"PET_RDZV_ID": "j"}) == RendezvousParameters("p10d", "", "j")

    def test_reads_the_process_environment_unless_told_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PET_RDZV_ID", "from-the-process")
        assert RendezvousParameters.from_env().run_id == "from-the-process"

    @pytest.mark.parametrize(("nnodes", "bounds"), [("3", (3, 3)), ("1:4", (1, 4)), (" 2 : 3 ", (2, 3)), ("", (1, 1))])
    def test_reads_one_number_of_nodes_or_two(self, nnodes: str, bounds: tuple[int, int]) -> None:
        made = RendezvousParameters.from_env({"PET_RDZV_ID": "j", "PET_NNODES": nnodes})
        assert (made.min_nodes, made.max_nodes) == bounds

    @pytest.mark.parametrize("environ", [{}, {"PET_RDZV_ID": ""}])
    def test_never_invents_a_run_id(self, environ: dict[str, str]) -> None:
        # R27: with a default all jobs would share one state.
        with pytest.raises(ValueError, match="PET_RDZV_ID must hold the run id"):
            RendezvousParameters.from_env(environ)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PET_NNODES", "many"),
            ("PET_NNODES", "1:"),
            ("PET_NNODES", ":2"),
            ("PET_NNODES", "1:2:3"),
            ("PET_NODE_RANK", "first"),
            ("PET_NPROC_PER_NODE", "gpu"),
            ("PET_RDZV_CONF", "join_timeout"),
        ],
    )
    def test_names_the_variable_that_is_wrong(self, name: str, value: str) -> None:
        with pytest.raises(ValueError, match=name):
            RendezvousParameters.from_env({"PET_RDZV_ID": "j", name: value})

    def test_keywords_win_over_conf_which_wins_over_defaults(self) -> None:
        # R115: one order of precedence for every way to say it.
        environ = {"PET_RDZV_ID": "j", "PET_RDZV_CONF": "join_timeout=7,close_timeout=8", "PET_NNODES": "2:4"}
        made = RendezvousParameters.from_env(environ, join_timeout=9, max_nodes=3)
        assert made.timeout == RendezvousTimeout(join=9, close=8)
        assert (made.min_nodes, made.max_nodes) == (2, 3)

    def test_does_not_read_a_variable_that_is_replaced(self) -> None:
        environ = {"PET_NPROC_PER_NODE": "gpu", "PET_NNODES": "?", "PET_RDZV_CONF": "?", "PET_NODE_RANK": "?"}
        made = RendezvousParameters.from_env(
            environ, run_id="r", local_world_size=2, min_nodes=1, max_nodes=2, config={}, node_rank=0
        )
        assert (made.run_id, made.local_world_size, made.max_nodes) == ("r", 2, 2)
