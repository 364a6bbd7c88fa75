"""``arendezvous run``: the elastic agent, with the options of torch's launcher."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .app import event_loop_option, mistake, run_in_loop
from .early import signals_end_it
from .options import option
from .pages import RareOption, help_all_option

if TYPE_CHECKING:
    from ..agent import AgentConfig
    from ..agent.logs import OutputSpec
    from ..params import RendezvousParameters

__all__ = ("make_config", "parse_nodes", "parse_workers", "run")


def parse_nodes(ctx: click.Context | None, param: click.Parameter | None, value: str) -> tuple[int, int]:
    """Read ``N`` or ``MIN:MAX`` nodes.

    Raises:
        click.BadParameter: the text is neither, or no such range exists.
    """
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?::\s*([0-9]{1,9})\s*)?", value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is neither a number of nodes (4) nor a range MIN:MAX (1:4).", ctx=ctx, param=param
        )
    low = int(found[1])
    high = low if found[2] is None else int(found[2])
    if low < 1:
        raise click.BadParameter(f"{value!r}: at least 1 node is needed.", ctx=ctx, param=param)
    if high < low:
        raise click.BadParameter(
            f"{value!r}: the minimum is greater than the maximum; did you mean {high}:{low}?", ctx=ctx, param=param
        )
    return low, high


def parse_workers(ctx: click.Context | None, param: click.Parameter | None, value: str) -> int:
    """Read a number of workers; torch's words for "as many as there are devices" are named in the refusal.

    Raises:
        click.BadParameter: the text is no positive number.
    """
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,6}", text) and int(text) > 0:
        return int(text)
    problem = (
        "this launcher does not count devices; give the number of workers."
        if text.lower() in ("gpu", "auto", "cpu", "xpu")
        else "a positive number of workers is needed."
    )
    raise click.BadParameter(f"{value!r}: {problem}", ctx=ctx, param=param)


def _read_output(ctx: click.Context | None, param: click.Parameter | None, value: str) -> OutputSpec:
    from ..agent.logs import parse_output_spec

    try:
        return parse_output_spec(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc), ctx=ctx, param=param) from exc


#: Without the bounds, which would make each line of the help two.
_COUNT, _SECONDS = click.IntRange(min=0), click.FloatRange(0, 1e6)
_REDIRECTS = "To files only: 1 stdout, 2 stderr, 3 both, or by local rank 0:1,1:3."
_TEE = "To files and, as [default0]:line, here; SPEC as for -r."


@click.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] --")
@option("--nnodes", callback=parse_nodes, default="1:1", metavar="MIN:MAX", help="Number of nodes.  [1:1]")
@option("--nproc-per-node", callback=parse_workers, default="1", metavar="N", help="Workers on this node.  [1]")
@option("--rdzv-endpoint", default="", metavar="HOST:PORT", help="Where the nodes meet.")
@option("--rdzv-id", metavar="ID", help="Name of the run.")
@option("--rdzv-conf", default="", metavar="K=V,...", help="Such as last_call_timeout=5.")
@option("--max-restarts", type=_COUNT, default=0, metavar="K", help="Worker failures to survive.  [0]")
@option("--standalone", is_flag=True, help="This node alone.")
@option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Files of the workers' output.")
@option("-m", "--module", is_flag=True, help="COMMAND is a Python module.")
@option("--no-python", cls=RareOption, is_flag=True, help="COMMAND is a program, even if it ends in .py.")
@option("--rdzv-backend", cls=RareOption, default="p10d", metavar="B", help="p10d, static, memory, a plug-in.  [p10d]")
@option("--node-rank", cls=RareOption, type=_COUNT, metavar="R", help="For static and rank_order=node_rank.")
@option("--local-addr", cls=RareOption, metavar="A", help="Own address for the other nodes, if found wrongly.")
@option("-r", "--redirects", cls=RareOption, callback=_read_output, default="0", metavar="SPEC", help=_REDIRECTS)
@option("-t", "--tee", cls=RareOption, callback=_read_output, default="0", metavar="SPEC", help=_TEE)
@option("-q", "--quiet", cls=RareOption, is_flag=True, help="Say only what goes wrong.")
@option("--monitor-interval", cls=RareOption, type=float, metavar="S", help="Without effect: nothing here polls.")
@option("--shutdown-timeout", cls=RareOption, type=_SECONDS, default=30, metavar="S", help="SIGTERM to SIGKILL.  [30]")
@help_all_option
@event_loop_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGS]...")
def run(event_loop: str, **options: Any) -> int:
    """Run COMMAND as the workers of one node of an elastic job. PET_* variables work too.
    Exit status: 0 done, 1 workers failed, 2 usage, 3 rendezvous failed, 130, 143.

    \b
    Example:
      arendezvous run --nnodes 1:4 --rdzv-id a --rdzv-endpoint h:29400 -- train.py
    """
    with signals_end_it():
        config = make_config(options, event_loop)
        from ..agent import ElasticAgent

        try:
            agent = ElasticAgent(config)
        except ValueError as exc:
            raise mistake(exc) from exc
        return run_in_loop(agent.run, event_loop)


def make_config(options: Mapping[str, Any], event_loop: str) -> AgentConfig:
    """Turn the options into what the agent is to do.

    Raises:
        click.UsageError: something is missing, malformed or contradicts something else.
    """
    from ..agent import AgentConfig, worker_argv
    from ..agent.logs import OutputPlan
    from .live import display

    try:
        argv = worker_argv(options["command"], module=options["module"], no_python=options["no_python"])
    except ValueError as exc:
        raise click.UsageError(f"{exc} Put it after --, as in: arendezvous run [OPTIONS] -- train.py") from exc
    _check_command(argv, options)
    params, embedded = _parameters(options)
    loop = event_loop if event_loop != "asyncio" or find_spec("uvloop") is None else "uvloop"
    return AgentConfig(
        params=params,
        argv=argv,
        max_restarts=options["max_restarts"],
        grace=float(options["shutdown_timeout"]),
        output=OutputPlan(options["log_dir"], options["redirects"], options["tee"]),
        embedded=embedded,
        serve=(sys.executable, "-m", "arendezvous", "serve", "--event-loop", loop),
        display=display(quiet=options["quiet"]),
    )


def _parameters(options: Mapping[str, Any]) -> tuple[RendezvousParameters, bool]:
    """The rendezvous, and whether this node is alone with a store of its own."""
    from ..agent.hosting import DYNAMIC_BACKENDS, needs_endpoint
    from ..endpoint import parse_rendezvous_config
    from ..params import RendezvousParameters

    low, high = options["nnodes"]
    run_id, endpoint, backend = options["rdzv_id"], options["rdzv_endpoint"], options["rdzv_backend"]
    standalone = options["standalone"]
    if standalone:
        if high > 1:
            raise click.UsageError(f"--standalone is a job of one node; it contradicts --nnodes {low}:{high}.")
        if backend not in DYNAMIC_BACKENDS:
            raise click.UsageError(f"--standalone brings its own store; it contradicts --rdzv-backend {backend}.")
        run_id, endpoint = os.urandom(8).hex(), ""
    elif not run_id:
        raise click.UsageError("--rdzv-id is missing: all nodes of a job give the same one. Or use --standalone.")
    try:
        config = parse_rendezvous_config(options["rdzv_conf"])
        params = RendezvousParameters(
            backend,
            endpoint,
            run_id,
            low,
            high,
            options["local_addr"],
            node_rank=options["node_rank"],
            local_world_size=options["nproc_per_node"],
            config=config,
        )
    except (ValueError, TypeError) as exc:
        raise mistake(exc) from exc
    if endpoint.strip() or not needs_endpoint(params):
        return params, False
    if params.max_nodes > 1:
        raise click.UsageError(
            f"--rdzv-endpoint HOST:PORT is missing: {params.max_nodes} nodes need a place to meet. "
            "For agents on this machine alone, 127.0.0.1:29400 will do."
        )
    return params, True


def _check_command(argv: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse a program that is not there before anybody is bothered with a rendezvous."""
    program = argv[0]
    if shutil.which(program) is None:
        what = "no such program on PATH" if os.sep not in program else "no such executable file"
        raise click.UsageError(f"COMMAND {program!r}: {what}.")
    script = options["command"][0]
    if argv[0] != script and not options["module"] and not os.path.isfile(script):
        raise click.UsageError(f"COMMAND {script!r}: no such file.")
