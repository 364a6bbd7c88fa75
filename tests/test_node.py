"""Node descriptors: identity, order, what is no part of identity; rank orders."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.node import RANK_ORDERS, Attributes, NodeDesc, check_node_ranks, order_nodes, sort_key

if TYPE_CHECKING:
    import random


def node(addr: str, rank: int | None = None, pid: int = 1, local_id: int = 0, incarnation: bytes = b"") -> NodeDesc:
    return NodeDesc(addr, pid, local_id, incarnation, node_rank=rank)


ADDRESSES = st.one_of(
    st.text(max_size=8),
    st.ip_addresses().map(str),
    st.from_regex(r"(node|n-)[0-9]{1,3}(\.[a-z0-9]{1,3})?", fullmatch=True),
)
NODES = st.builds(
    NodeDesc,
    ADDRESSES,
    st.integers(0, 3),
    st.integers(0, 3),
    st.binary(max_size=2),
    node_rank=st.none() | st.integers(0, 5),
)


def test_a_node_is_written_as_address_process_and_local_number() -> None:
    assert repr(NodeDesc("host", 12, 3, b"x" * 16, node_rank=1)) == "host_12_3"
    assert str(NodeDesc("host", 12, 3)) == "host_12_3"
    assert NodeDesc("host", 12, 3, b"x").triple == ("host", 12, 3)


def test_incarnation_is_part_of_identity_and_the_triple_is_not_enough() -> None:
    old, new = NodeDesc("h", 1, 0, b"a"), NodeDesc("h", 1, 0, b"b")
    assert old != new
    assert old.triple == new.triple
    assert len({old, new}) == 2
    assert old < new


def test_rank_size_and_attributes_are_no_part_of_identity() -> None:
    plain = NodeDesc("h", 1, 0, b"a")
    rich = NodeDesc("h", 1, 0, b"a", node_rank=3, local_world_size=8, attributes={"role": "trainer"})
    assert plain == rich
    assert hash(plain) == hash(rich)
    assert not plain < rich
    assert not rich < plain


@given(NODES, NODES)
def test_nodes_order_as_their_descriptors(one: NodeDesc, other: NodeDesc) -> None:
    def parts(n: NodeDesc) -> tuple[str, int, int, bytes]:
        return (*n.triple, n.incarnation)

    assert (one < other) == (parts(one) < parts(other))
    assert (one == other) == (parts(one) == parts(other))
    assert one != other or hash(one) == hash(other)


def test_a_node_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NodeDesc("h", 1, 0).addr = "other"  # type: ignore[misc]


def test_attributes_are_copied_and_read_only() -> None:
    given_: dict[str, Any] = {"gpus": 8}
    desc = NodeDesc("h", 1, 0, attributes=given_)
    given_["gpus"] = 0
    assert desc.attributes == {"gpus": 8}
    with pytest.raises(TypeError):
        desc.attributes["gpus"] = 1  # type: ignore[index]


def test_a_node_survives_pickle_copy_and_replace() -> None:
    desc = NodeDesc("h", 1, 2, b"inc", 3, 4, {"role": "ps", "share": 0.5, "ready": True})
    for twin in (pickle.loads(pickle.dumps(desc)), copy.deepcopy(desc), dataclasses.replace(desc)):
        assert twin == desc
        assert (twin.node_rank, twin.local_world_size, twin.attributes) == (3, 4, desc.attributes)
    moved = dataclasses.replace(desc, incarnation=b"new")
    assert moved.attributes == desc.attributes
    assert moved != desc


@given(st.dictionaries(st.text(max_size=3), st.one_of(st.text(max_size=3), st.integers(), st.booleans()), max_size=5))
def test_attributes_behave_as_the_mapping_they_were_made_from(items: dict[str, str | int | bool]) -> None:
    attributes = Attributes(items)
    assert attributes == items
    assert dict(attributes) == items
    assert list(attributes) == list(items)
    assert len(attributes) == len(items)
    assert repr(attributes) == repr(items)
    assert pickle.loads(pickle.dumps(attributes)) == attributes
    backwards = Attributes(reversed(items.items()))
    assert attributes == backwards
    assert hash(attributes) == hash(backwards)
    assert "no such key" not in attributes
    with pytest.raises(KeyError):
        attributes["no such key"]


def test_address_order_sorts_the_descriptors_as_text() -> None:
    nodes = [
        node("node2"),
        node("node10"),
        node("node1", pid=9),
        node("node1", pid=10),
        node("node1", pid=9, local_id=1),
    ]
    assert [repr(n) for n in order_nodes(nodes, "address")] == [
        "node1_9_0",
        "node1_9_1",
        "node1_10_0",
        "node10_1_0",
        "node2_1_0",
    ]


@pytest.mark.parametrize(
    "addresses",
    [
        ["node2", "node10"],
        ["10.0.0.9", "10.0.0.10"],
        ["9.255.0.1", "10.0.0.1"],
        ["fe80::9", "fe80::10", "fe80::a0"],
        ["::9", "::ffff"],
        ["fe80::1%eth0", "fe80::1%eth1"],
        ["10.0.0.1", "::1", "node1"],
        ["rack2-node10", "rack10-node2"],
        ["1node", "2node", "10node"],
        ["a", "a1", "a1b", "a2", "b"],
        ["node1.rack2", "node1.rack10"],
        ["node02", "node2", "node3"],
        ["n" + "1" * 5000, "n" + "2" * 5000],
    ],
)
def test_natural_order_counts_numbers(addresses: list[str]) -> None:
    assert [n.addr for n in order_nodes([node(a) for a in reversed(addresses)], "natural")] == addresses


def test_node_rank_order_follows_the_wishes_and_puts_the_others_last() -> None:
    nodes = [node("a"), node("b", 2), node("c", 0), node("d", 0), node("e", 1), node("f")]
    assert [n.addr for n in order_nodes(nodes, "node_rank")] == ["c", "d", "e", "b", "a", "f"]


def test_stable_order_leaves_the_nodes_alone() -> None:
    nodes = [node("c"), node("a"), node("b")]
    ordered = order_nodes(nodes, "stable")
    assert ordered == nodes
    assert ordered is not nodes


@given(st.lists(NODES, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_address_and_natural_order_depend_on_the_nodes_alone(nodes: list[NodeDesc], rng: random.Random) -> None:
    shuffled = nodes[:]
    rng.shuffle(shuffled)
    for order in ("address", "natural"):
        assert order_nodes(nodes, order) == order_nodes(shuffled, order)
    assert order_nodes(nodes, "address") == sorted(nodes)


@given(st.lists(NODES, max_size=8))
def test_no_order_loses_a_node(nodes: list[NodeDesc]) -> None:
    for order in RANK_ORDERS:
        assert sorted(order_nodes(nodes, order)) == sorted(nodes)
        assert sorted(nodes, key=sort_key(order)) == order_nodes(nodes, order)


def test_an_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'adress'.*address, natural, node_rank, stable"):
        order_nodes([], "adress")


@pytest.mark.parametrize("ranks", [[], [0], [1, 0], [2, 0, 1]])
def test_dense_node_ranks_are_accepted(ranks: list[int]) -> None:
    assert check_node_ranks([node(f"n{rank}", rank) for rank in ranks]) is None


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([0, 2], "node_rank 2 of n1_1_0 is not below the 2 nodes of the round; nobody has node_rank 1"),
        ([1], "node_rank 1 of n0_1_0 is not below the 1 nodes of the round; nobody has node_rank 0"),
        ([-1, 0], "node_rank -1 of n0_1_0 is not below the 2 nodes of the round; nobody has node_rank 1"),
        ([0, 0], "node_rank 0 is claimed by n0_1_0 and n1_1_0; nobody has node_rank 1"),
        ([0, None], "n1_1_0 gave no node_rank; nobody has node_rank 1"),
        ([None, None, None], "n0_1_0, n1_1_0 and n2_1_0 gave no node_rank; nobody has node_rank 0, 1 and 2"),
        ([1, 1, 1], "node_rank 1 is claimed by n0_1_0, n1_1_0 and n2_1_0; nobody has node_rank 0 and 2"),
    ],
)
def test_gaps_duplicates_and_missing_node_ranks_are_named(ranks: list[int | None], sentence: str) -> None:
    assert check_node_ranks([node(f"n{i}", rank) for i, rank in enumerate(ranks)]) == sentence


def test_an_explanation_stays_readable_however_many_nodes_are_wrong() -> None:
    text = check_node_ranks([node(f"n{i}", i // 2 + 10_000) for i in range(1000)])
    assert text is not None
    assert len(text) < 2000
    assert "492 more like it" in text
    assert "and 992 more" in text


@given(st.lists(st.none() | st.integers(-1, 6), max_size=6))
def test_node_ranks_are_right_exactly_if_they_are_a_permutation(ranks: list[int | None]) -> None:
    nodes = [node(f"n{i}", rank) for i, rank in enumerate(ranks)]
    right = sorted(rank for rank in ranks if rank is not None) == list(range(len(ranks)))
    assert (check_node_ranks(nodes) is None) == right
    if right:
        assert [n.node_rank for n in order_nodes(nodes, "node_rank")] == list(range(len(ranks)))
