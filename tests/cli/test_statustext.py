from __future__ import annotations

import io
import json
import math
from dataclasses import replace

from arendezvous.cli.statusnews import Change
from arendezvous.cli.statustext import document, plain, table, update
from arendezvous.handler.status import NodeStatus, RendezvousStatus
from arendezvous.node import NodeDesc

HOSTILE = "\x1b[2J\x07evil\u202e[red]x[/red]\n"


def node(name: str, rank: int | None, condition: str = "live", age: float | None = 0.25, **attributes: str | float):
    desc = NodeDesc(name, 7, 0, name.encode()[:16], attributes=attributes)
    return NodeStatus(desc, "member" if rank is not None else "spare", rank, condition, age, age is not None)


STATUS = RendezvousStatus(
    *("run", "h:1", 3, True, "no", 2, 4, 1),
    (node("a", 0, gpu="h100", t=math.nan), node("bb", 1, "lost", None), node("c", None)),
    (),
    "round 3 is complete with 2 nodes",
)


def test_plain_text_is_aligned_and_has_a_question_mark_for_no_heartbeat() -> None:
    lines = plain(STATUS).splitlines()
    at = lines.index("")
    assert lines[:at] == [
        "run:      run",
        "store:    h:1",
        "round:    3, complete",
        "nodes:    2 in the round, 1 spare (min 2, max 4)",
        "failures: 1",
        "state:    round 3 is complete with 2 nodes",
    ]
    assert lines[at + 1 :] == [
        "RANK  NODE    ROLE    CONDITION  HEARTBEAT  ATTACHED  ATTRIBUTES",
        "0     a_7_0   member  live       0.2 s      yes       gpu=h100 t=nan",
        "1     bb_7_0  member  lost       ?          no        -",
        "-     c_7_0   spare   live       0.2 s      yes       -",
    ]


def test_a_round_that_forms_says_what_it_waits_for() -> None:
    forming = replace(STATUS, complete=False, nodes=STATUS.nodes[:1], missing=(NodeDesc("z", 1, 0),))
    text = plain(forming)
    assert "\nmissing:  not back from the last round: z_1_0\n" in text
    assert "\nwaits:    for at least 1 more node\n" in text
    assert "\nwaits:    for the end of the last call, or all nodes" in plain(replace(forming, min_nodes=1))


def test_a_node_that_is_not_heard_of_is_named() -> None:
    silent = replace(STATUS, nodes=(replace(STATUS.nodes[0], attached=False),))
    assert "\nsilent:   not heard of: a_7_0\n" in plain(silent)


def test_nothing_that_a_stranger_wrote_reaches_the_terminal_as_it_is() -> None:
    from rich.console import Console

    evil = replace(STATUS, nodes=(node(HOSTILE, 0, note=HOSTILE),), reason=HOSTILE, endpoint=HOSTILE)
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=200, color_system=None).print(table(evil))
    for text in (plain(evil), out.getvalue()):
        assert "\\x1b[2J" in text
        assert "[red]" in text
        assert not {"\x1b[2J", "\x07", "\u202e"} & {text[k : k + n] for k in range(len(text)) for n in (1, 4)}


def test_the_document_has_stable_keys_and_is_strict_json() -> None:
    found = json.loads(json.dumps(document(STATUS), allow_nan=False))
    assert list(found) == [
        *("format", "run_id", "endpoint", "round", "complete", "closed", "min_nodes", "max_nodes", "failures"),
        *("reason", "explanation", "nodes", "missing"),
    ]
    assert found["format"] == 1
    assert found["nodes"][0] == {
        "node": "a_7_0",
        "addr": "a",
        "pid": 7,
        "local_id": 0,
        "incarnation": "61",
        "role": "member",
        "rank": 0,
        "condition": "live",
        "heartbeat_age": 0.25,
        "attached": True,
        "node_rank": None,
        "local_world_size": 1,
        "attributes": {"gpu": "h100", "t": "nan"},
    }
    assert found["nodes"][1]["heartbeat_age"] is None


def test_a_run_that_nobody_joined_has_no_sizes() -> None:
    nobody = document(replace(STATUS, round=None, complete=False, nodes=()))
    assert (nobody["round"], nobody["min_nodes"], nobody["max_nodes"], nobody["nodes"]) == (None, None, None, [])


def test_an_update_says_when_and_what() -> None:
    found = update(1.23456, [Change("lost", "lost: a", "a")], None, "refused")
    assert found == {
        "format": 1,
        "elapsed": 1.235,
        "changes": [{"kind": "lost", "node": "a", "text": "lost: a"}],
        "status": None,
        "error": "refused",
    }
