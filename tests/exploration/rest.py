"""Which states may be the end when no further fault happens."""

from __future__ import annotations

from .space import Space

__all__ = ("rest",)


def rest(space: Space, g: tuple[int, ...]) -> str | None:
    """Why a state in which nothing happens without a fault is no legal rest state; None when it is one."""
    config, n = space.config, space.n
    state = space.states[g[0]]
    nodes = [space.nodes[x] for x in g[2:-2]]

    def those(phases: str) -> list[bytes]:
        return [space.incs[i + n * node.inc] for i, node in enumerate(nodes) if node.phase in phases]

    def show(incs: object) -> list[int]:
        return [space.index[inc] for inc in incs]  # type: ignore[attr-defined]

    waiting, members, finished, hung = those("JNX"), those("M"), those("F"), set(those("Z"))
    if those("L"):
        return "a withdrawal never ends"
    if state is None:
        return "somebody waits and nobody creates the state" if waiting or members or finished else None
    if state.is_closed:
        return "somebody does not notice that it is closed" if waiting or members or finished else None
    alive = {*waiting, *members, *finished, *hung}
    by_inc = {space.incs[i + n * node.inc]: node for i, node in enumerate(nodes)}
    ghosts = [inc for inc in state.ring if inc not in alive]
    if ghosts and (waiting or members or finished):
        return f"a dead node stays listed: {show(ghosts)}"
    here = (state.round, space.eras[g[0]])
    for inc in members:
        if (by_inc[inc].last, by_inc[inc].era) != here or inc not in state.live:
            return f"member {show([inc])} does not know that its round is over"
    busy = [inc for inc in state.live if inc not in state.finished and (inc in members or inc in hung)]
    for inc in finished:
        if (by_inc[inc].last, by_inc[inc].era) != here or inc not in state.live or inc not in state.finished:
            return f"the finished member {show([inc])} is neither counted nor released"
        if not busy:
            return f"the finished member {show([inc])} is never released"
    if state.owed and config.notify_lost and any(inc in members for inc in state.live):
        return "an unfinished member ignores a loss"
    if not waiting:
        return None
    if state.complete:
        if state.finished and busy and not state.owed:
            return None  # the job is ending, the queue waits for that
        if len(state.live) == config.max_nodes and set(state.live) <= set(members) | set(finished):
            return None  # full: spares wait
        if set(state.live) - state.finished & hung or set(state.live) & hung:
            return None  # a member that beats and never re-joins holds its round (R103)
        return f"{show(waiting)} wait behind the complete round {state.round} of {show(state.live)}"
    if len(waiting) + len(members) < config.min_nodes:
        return None
    return (
        f"{len(waiting)} want in, min is {config.min_nodes}, and round {state.round} does not complete: "
        f"P={show(state.participants)} Q={show(state.queue)}"
    )
