"""Replay simulations: ``python -m arendezvous.testing.replay SEED [--transport tcp] [--backend asyncio] [-v]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from .simulator import simulate

__all__ = ("main",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the simulations that the arguments name; 1 if one of them found a violation."""
    parser = argparse.ArgumentParser(prog="python -m arendezvous.testing.replay", description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many seeds, from the first on")
    parser.add_argument("--transport", choices=("memory", "tcp"), default="memory")
    parser.add_argument("--backend", choices=("trio", "asyncio"), default="trio")
    parser.add_argument("--nodes", type=int, help="how many nodes; drawn from the seed unless given")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="print the log; twice: the library's too")
    chosen = parser.parse_args(argv)
    bad, start = 0, time.monotonic()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        began = time.monotonic()
        report = simulate(
            seed, transport=chosen.transport, nodes=chosen.nodes, backend=chosen.backend, verbose=chosen.verbose > 1
        )
        took = time.monotonic() - began
        if chosen.verbose:
            print("\n".join(report.log))  # noqa: T201
        if chosen.verbose or chosen.count == 1 or report.violations:
            print(  # noqa: T201
                f"seed {seed}: {report.rounds} rounds, {report.writes} states, {report.seconds:.1f} virtual seconds "
                f"in {took:.2f} s, log {report.digest}, {len(report.violations)} violations"
            )
        for sentence in report.violations:
            print(f"  {sentence}")  # noqa: T201
        if report.violations:
            bad += 1
            print(f"  replay: {report.replay}")  # noqa: T201
    if chosen.count > 1:
        took = time.monotonic() - start
        print(f"{chosen.count} simulations in {took:.1f} s, {bad} with violations")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
