from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from arendezvous.cli.options import option


@click.command()
@option("--rdzv-id", default="none")
def show(rdzv_id: str) -> None:
    click.echo(rdzv_id)


def test_an_option_reads_the_variable_of_torchs_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_ID", "from-env")
    assert CliRunner().invoke(show).output == "from-env\n"


def test_the_command_line_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_ID", "from-env")
    assert CliRunner().invoke(show, ["--rdzv-id", "given"]).output == "given\n"
