"""``arendezvous serve``: a store server that outlives every agent."""

from __future__ import annotations

import os
import signal
import sys

import click

from .app import event_loop_option, mistake, run_in_loop

__all__ = ("serve",)


@click.command()
@click.argument("endpoint", metavar="[HOST:PORT]", required=False, default="127.0.0.1:29400")
@click.option(
    "--until-idle",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="End when no client has been connected for S seconds.",
)
@click.option("--bind", metavar="ADDR", help="Bind this address instead of HOST, such as 0.0.0.0.")
@click.option("--detached", is_flag=True, hidden=True, help="Write nothing after the line that says it is ready.")
@event_loop_option
def serve(endpoint: str, until_idle: float | None, bind: str | None, detached: bool, event_loop: str) -> int:
    """Serve a store at HOST:PORT (127.0.0.1:29400); port 0 takes a free one.

    Prints one line when it is ready. Ends on Ctrl-C (130), SIGTERM (143) or --until-idle (0); 3 when it cannot listen.

    \b
    Example:
      arendezvous serve 0.0.0.0:29400
      arendezvous serve 10.0.0.1:29400 --until-idle 300
    """
    from ..endpoint import parse_rendezvous_endpoint
    from ..errors import RendezvousConnectionError

    try:
        host, port = parse_rendezvous_endpoint(endpoint, 29400)
    except ValueError as exc:
        raise mistake(exc) from exc
    try:
        return run_in_loop(lambda: _serve(host, port, bind, until_idle, detached), event_loop)
    except RendezvousConnectionError as exc:
        click.echo(f"arendezvous: {exc}", err=True)
        return 3


async def _serve(host: str, port: int, bind: str | None, until_idle: float | None, detached: bool) -> int:
    import anyio

    from ..agent.hosting import READY_PREFIX
    from ..store.server import TCPStoreServer

    status = 0
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with TCPStoreServer(host, port, bind=bind) as server, anyio.create_task_group() as tg:

            async def obey() -> None:
                nonlocal status
                async for number in signals:
                    status = 128 + number
                    tg.cancel_scope.cancel()

            tg.start_soon(obey)
            click.echo(f"{READY_PREFIX}{server.endpoint}")
            if detached:
                _detach()
            if until_idle is None:
                await anyio.sleep_forever()
            else:
                await server.wait_idle(until_idle)
            tg.cancel_scope.cancel()
    return status


def _detach() -> None:
    """Whoever started this process may go, and its pipes with it."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
