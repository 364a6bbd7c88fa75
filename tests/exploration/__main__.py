"""``python -m tests.exploration --nodes 3 --min 2 --max 3 --faults 2``: explore one configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .config import CORE_RULES, ENVIRONMENT_RULES, LIMITED, Config
from .explorer import explore


def main(argv: Sequence[str] | None = None) -> int:
    """Explore what the command line asks for; the status is 0 when nothing was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.exploration",
        description="Explore every interleaving of the real decide and fold, within budgets of faults.",
        epilog=f"Core rules: {', '.join(sorted(CORE_RULES))}. Outside of the core: {', '.join(ENVIRONMENT_RULES)}.",
    )
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--min", type=int, required=True, dest="least")
    parser.add_argument("--max", type=int, required=True, dest="most")
    parser.add_argument("--faults", type=int, default=1)
    for kind in LIMITED:
        parser.add_argument(f"--{kind}", type=int, default=None, help=f"at most so many of this kind ({kind})")
    parser.add_argument("--off", nargs="*", default=[], metavar="RULE", help="rules to switch off")
    parser.add_argument("--places", type=int, nargs="*", default=[], help="a place per node; equal ones are twins")
    parser.add_argument("--misfits", type=int, nargs="*", default=[], help="nodes with other settings")
    parser.add_argument("--relocate", action="store_true", help="a restarted node has another process number")
    parser.add_argument("--no-symmetry", action="store_true", help="explore equivalent states too")
    parser.add_argument("--no-notify-lost", action="store_true", help="members are not told of lost members")
    parser.add_argument("--tombstones", type=int, default=4096, help="tombstones kept in one generation")
    parser.add_argument("--plain", action="store_true", help="nodes read announcements only when they have a reason")
    parser.add_argument("--cap", type=int, default=50_000_000, help="stop after so many states")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    args = parser.parse_args(argv)
    config = Config(
        args.nodes,
        args.least,
        args.most,
        args.faults,
        limits={kind: getattr(args, kind) for kind in LIMITED if getattr(args, kind) is not None},
        off=frozenset(args.off),
        places=tuple(args.places),
        misfits=tuple(args.misfits),
        relocate=args.relocate,
        notify_lost=not args.no_notify_lost,
        tombstone_limit=args.tombstones,
        curious=not args.plain,
        symmetry=not args.no_symmetry,
    )

    def progress(line: str) -> None:
        print(line, end="\r", file=sys.stderr, flush=True)

    outcome = explore(config, cap=args.cap, seconds=args.seconds, progress=progress)
    print(outcome)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
