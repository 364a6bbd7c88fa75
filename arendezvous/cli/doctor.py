"""``arendezvous doctor``: why nodes do not meet, and what to do; to be pasted into a bug report."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from .app import event_loop_option, mistake, run_in_loop
from .options import option

if TYPE_CHECKING:
    from .checks.finding import Finding
    from .checkup import Case

__all__ = ("doctor",)

#: Seconds for each check, and for a listener.
_LIMIT, _LISTEN_LIMIT, _MOST = 5.0, 60.0, 86400.0
#: Options of the rendezvous that hold no secrets; those of plug-ins might.
_PLAIN = re.compile(
    r"[a-z]+_timeout|timeout|keep_alive_\w+|rank_order|store_type|is_host|bind|linger|rank|bootstrap_port"
)
_CREDENTIALS = re.compile(r"^([a-z][a-z0-9+.-]*://)?[^/@]*:[^@]*@", re.IGNORECASE)


def _check_limit(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value <= _MOST:
        raise click.BadParameter(f"{value:g} is not in the range 0<x<={_MOST:g}.", ctx=ctx, param=param)
    return value


@click.command()
@click.argument("endpoint", metavar="[HOST:PORT]", required=False, envvar="PET_RDZV_ENDPOINT")
@option("--rdzv-backend", default="p10d", metavar="B", help="As for `run`.  [p10d]")
@option("--rdzv-id", metavar="ID", help="Also look at this run.")
@option("--rdzv-conf", default="", metavar="K=V,...", help="As for `run`, such as is_host=true.")
@option("--local-addr", metavar="A", help="As for `run`.")
@click.option("--listen", is_flag=False, flag_value="0", metavar="[PORT]", help="Wait for the --dial of another node.")
@click.option("--dial", metavar="HOST:PORT", help="Try to reach the --listen of another node.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--timeout", type=float, callback=_check_limit, metavar="S", help="Limit of a check [5], of --listen [60]."
)
@event_loop_option
def doctor(event_loop: str, as_json: bool, **options: Any) -> int:
    """Find out why nodes do not meet, and what to do; it writes, joins and hosts nothing.
    Exit status: 0 nothing failed, 2 usage, 3 something FAILed.

    \b
    Example:
      arendezvous doctor node0:29400 --rdzv-id job7
      arendezvous doctor node0:29400 --listen     # on one node; on another:
      arendezvous doctor --dial 10.0.0.7:41235    # what --listen printed
    """
    case, shown = _make_case(options)
    from .checks.header import gather

    header = gather(event_loop, shown)
    if not as_json:
        for name, value in header.items():
            _say(f"{name + ':':13}{value}")
        _say("")
    status: int = run_in_loop(lambda: _examine(case, header, as_json), event_loop)
    return status


async def _examine(case: Case, header: dict[str, str], as_json: bool) -> int:
    from .checks.finding import Report
    from .checkup import Checkup

    report = Report(_tell_listener if as_json else _tell)
    checkup = Checkup(case, report)
    status = 130
    try:
        await checkup.run()
        status = report.status
        if as_json:
            _say(json.dumps(report.document(header), indent=1))
        else:
            _say("")
            _say(report.summary())
    finally:
        if checkup.abandoned:
            # Its thread is waited for by whatever else ends a process, for as long as the resolver takes.
            sys.stdout.flush()
            os._exit(status)
    return status


def _make_case(options: dict[str, Any]) -> tuple[Case, dict[str, str]]:
    """What to examine, and how the report calls it.

    Raises:
        click.UsageError: options contradict each other or are malformed.
    """
    from ..endpoint import parse_rendezvous_config, parse_rendezvous_endpoint
    from ..params import RendezvousParameters
    from .checkup import Case

    endpoint, listen, dial = options["endpoint"], options["listen"], options["dial"]
    if listen is not None and not re.fullmatch("[0-9]{1,5}", listen) and endpoint is None:
        # `--listen HOST:PORT` is the option without its value and the endpoint.
        endpoint, listen = listen, "0"
    if listen is not None and dial is not None:
        raise click.UsageError("--listen and --dial are one for each node, not both for one.")
    if listen is not None and not (re.fullmatch("[0-9]{1,5}", listen) and int(listen) <= 65535):
        raise click.UsageError(f"--listen {listen!r}: a port is 0 to 65535.")
    try:
        config = parse_rendezvous_config(options["rdzv_conf"])
        target = None
        if dial is not None:
            target = parse_rendezvous_endpoint(_masked(dial), 0)
            if not target[1] or not dial.strip():
                raise ValueError(f"--dial {_masked(dial)!r} needs the HOST:PORT that --listen printed.")
        endpoint = None if endpoint is None or not endpoint.strip() else _masked(endpoint)
        params = RendezvousParameters(
            options["rdzv_backend"],
            endpoint or "",
            options["rdzv_id"] or "doctor",
            1,
            2,
            options["local_addr"],
            config=config,
        )
        # Here and not half way through: a mistake in an option is no finding about the network.
        params.get_as_bool("is_host", None)
        params.get_as_seconds("keep_alive_interval", None)
    except (ValueError, TypeError) as exc:
        raise mistake(exc) from exc
    limit = options["timeout"]
    case = Case(
        params,
        endpoint,
        options["rdzv_id"] or None,
        None if listen is None else int(listen),
        target,
        limit if limit is not None and listen is None else _LIMIT,
        _LISTEN_LIMIT if limit is None else limit,
    )
    conf = ",".join(f"{key}={value if _PLAIN.fullmatch(key) else '***'}" for key, value in config.items())
    shown = {
        "endpoint": endpoint,
        "backend": options["rdzv_backend"],
        "run": options["rdzv_id"],
        "options": conf,
        "dial": dial and _masked(dial),
    }
    return case, {name: value for name, value in shown.items() if value}


def _masked(text: str) -> str:
    """The text without the ``user:password@`` that somebody may have put into it."""
    return _CREDENTIALS.sub(lambda found: f"{found[1] or ''}***:***@", text)


def _tell(finding: Finding) -> None:
    _say(f"{finding.level:5} {finding.subject:12} {finding.seen}")
    if finding.todo:
        _say(f"      → {finding.todo}")


def _tell_listener(finding: Finding) -> None:
    """Whoever waits for the document still has to know what to run on the other node."""
    if finding.subject == "listen":
        click.echo(f"{finding.seen}; {finding.todo}" if finding.todo else finding.seen, err=True)


def _say(line: str) -> None:
    """Print a line in whatever the terminal can show, at once: the next one may take a while."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        line = line.replace("→", "->").encode(encoding, "backslashreplace").decode(encoding)
    click.echo(line)
