from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from arendezvous.cli.pages import RareOption, help_all_option


@click.command()
@click.option("--common", help="C.")
@click.option("--seldom", cls=RareOption, help="S.")
@help_all_option
def command(common: str | None, seldom: str | None) -> None:
    """Do it."""
    click.echo(f"{common} {seldom}")


@pytest.mark.parametrize(("page", "listed"), [("--help", False), ("--help-all", True)])
def test_a_rare_option_is_on_the_second_page_only(page: str, listed: bool) -> None:
    shown = CliRunner().invoke(command, [page])
    assert shown.exit_code == 0
    assert "--common" in shown.output
    assert ("--seldom" in shown.output) is listed
    assert "--help-all" in shown.output


def test_a_rare_option_works_like_any_other() -> None:
    assert CliRunner().invoke(command, ["--seldom", "x"]).output == "None x\n"
