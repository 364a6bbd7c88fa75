"""What this machine allows: open files, IPv6."""

from __future__ import annotations

from .address import route_to
from .finding import Finding, note, ok, warn

__all__ = ("judge_files", "judge_ipv6", "open_files")

#: Descriptors of a store process besides one for each client.
_OWN = 16
_FEW, _SOME = 256, 1024


def judge_files(limit: int | None) -> Finding:
    """How many clients a store here could have.

    Args:
        limit: How many files a process may have open; None = any number.
    """
    if limit is None:
        return ok("open files", "no limit")
    seen = f"ulimit -n is {limit}: a store hosted here takes about {max(limit - _OWN, 0)} agents"
    if limit >= _SOME:
        return ok("open files", seen)
    todo = "raise it with ulimit -n (or LimitNOFILE=, or the container's limits) where the store is hosted"
    return warn("open files", seen, todo) if limit < _FEW else note("open files", seen, todo)


def open_files() -> int | None:
    """How many files a process may have open; None = any number, or nobody knows."""
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


async def judge_ipv6() -> Finding:
    """Whether this machine speaks IPv6 at all."""
    if not await route_to("::1"):
        return note(
            "IPv6",
            "not available on this machine",
            "nothing, unless the endpoint is IPv6: then enable it, or use an IPv4 address on all nodes",
        )
    # Documentation addresses have the default route.
    if own := await route_to("2001:db8::1"):
        return ok("IPv6", f"available, with a way out from {own}")
    return ok("IPv6", "available on this machine; there is no route to other networks")
