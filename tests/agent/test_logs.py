from __future__ import annotations

from pathlib import Path

import pytest

from arendezvous.agent.logs import LogDirectory, OutputPlan, OutputSpec, fit_lines, last_lines, parse_output_spec


@pytest.mark.parametrize(
    ("text", "covered"),
    [("0", set()), ("3", {(0, 1), (0, 2), (1, 1), (1, 2)}), ("2", {(0, 2), (1, 2)}), ("0:1,1:2", {(0, 1), (1, 2)})],
)
def test_specs_as_torchrun_spells_them(text: str, covered: set[tuple[int, int]]) -> None:
    spec = parse_output_spec(text)
    assert {(rank, stream) for rank in (0, 1) for stream in (1, 2) if spec.covers(rank, stream)} == covered
    assert bool(spec) == bool(covered)


@pytest.mark.parametrize("text", ["", "4", "0:4", "a:1", "0:1,0:2", "-1", "1,2"])
def test_other_specs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither 0"):
        parse_output_spec(text)


@pytest.mark.parametrize("run_id", ["job", "../../x", "..", "a/b", "x" * 3000, "\n"])
def test_no_run_id_leads_out_of_the_directory_or_into_another_one(tmp_path: Path, run_id: str) -> None:
    first, second = LogDirectory(tmp_path, run_id), LogDirectory(tmp_path, run_id)
    other = LogDirectory(tmp_path, run_id + "y")
    assert first.path != second.path
    assert len({first.path.parent, other.path.parent}) == 2
    for directory in (first, second, other):
        path = directory.make(0, 1)
        assert path.is_dir()
        assert path.relative_to(tmp_path).parts[2:] == ("round_0", "1")


def test_a_directory_alone_is_a_tee_and_no_options_make_no_file(tmp_path: Path) -> None:
    assert not OutputPlan().has_files
    files = LogDirectory(tmp_path, "job")
    both = OutputPlan(tmp_path).outputs(files, 2, 0, "default")
    assert both.out == f"+{files.path}/round_2/0/stdout.log"
    assert both.err == f"+{files.path}/round_2/0/stderr.log"
    assert both.prefix == "[default0]:"
    mixed = OutputPlan(tmp_path, OutputSpec(1), OutputSpec(2)).outputs(files, 2, 0, "default")
    assert (mixed.out[0], mixed.err[0]) == (">", "+")


def test_the_last_lines_are_bounded_and_harmless() -> None:
    lines = last_lines(b"\n".join(b"%d\x1b[2J" % k for k in range(100)) + b"\n" + b"y" * 5000 + b"\xff\n\n")
    assert len(lines) == 15
    assert max(map(len, lines)) <= 400
    assert lines[0] == "86\\x1b[2J"
    assert last_lines(b"10%\r20%\r") == ("10%", "20%")
    assert fit_lines([]) == ()
