"""Processes that are killed, stopped, continued and asked to end, with one merged record of what happened when.

::

    with Harness() as harness:
        harness.start("A", [sys.executable, "agent.py"])
        harness.wait_event("A", "joined", 20)
        harness.signal("A", "stop")

A process reports by JSON objects on lines of its standard output, ``{"event": "joined", ...}``; other lines are kept as
text. Or a plan, which ``python -m tests.faults.proc_faults PLAN.json`` runs and whose record it prints::

    {"agents": {"A": ["cmd", ...], "B": {"cmd": [...], "env": {...}, "start": 1.0}},
     "steps": [{"at": 3.0, "do": "kill", "to": "B"},
               {"after": "joined", "of": "A", "wait": 1.0, "do": "stop", "to": "B", "tree": true, "for": 5.0}],
     "end": 30}

A step is due at a time from the start, or ``wait`` seconds after agent ``of`` reports the event ``after`` (for the
``count``-th time). ``do`` is one of kill, stop, cont, term, int; ``for`` seconds after a stop comes a cont; ``tree``:
the agent's children too. Signals go to processes that were started here, never to names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ("SIGNALS", "Harness", "run_plan")

SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
    "term": signal.SIGTERM,
    "int": signal.SIGINT,
}

Entry = dict[str, Any]


class Harness:
    """Starts processes, each a session of its own, signals them, and keeps the record.

    An entry of the record has ``s`` (seconds since the start), ``src`` (a process or ``rig``) and one of ``line`` (a
    reported object), ``text``, ``exit`` (a return code) and ``did`` (what the harness did, with ``to``).

    Args:
        echo: Called with every entry as it comes.
    """

    def __init__(self, echo: Callable[[str], object] | None = None) -> None:
        self.log: list[Entry] = []
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.began = time.monotonic()
        self._echo = echo
        self._news = threading.Condition()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def note(self, source: str, **more: Any) -> Entry:
        """Add to the record."""
        entry = {"s": round(time.monotonic() - self.began, 3), "src": source, **more}
        with self._news:
            self.log.append(entry)
            self._news.notify_all()
        if self._echo is not None:
            self._echo(json.dumps(entry))
        return entry

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a process."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        self.processes[name] = process
        self.note("rig", did="start", to=name, pid=process.pid)
        reader = threading.Thread(target=self._read, args=(name, process), daemon=True)
        self._readers.append(reader)
        reader.start()
        return process

    def events(self, name: str, event: str | None = None) -> list[Entry]:
        """What a process has reported so far."""
        with self._news:
            return self._events(name, event)

    def wait_event(self, name: str, event: str, timeout: float, count: int = 1) -> Entry:
        """Wait until a process has reported an event ``count`` times; return that entry.

        Raises:
            TimeoutError: it has not.
        """
        with self._news:
            if self._news.wait_for(lambda: len(self._events(name, event)) >= count, timeout):
                return self._events(name, event)[count - 1]
        raise TimeoutError(f"{name} gave no {event!r} number {count} in {timeout} s")

    def wait_exit(self, name: str, timeout: float) -> int:
        """Wait for the end of a process; return its code, negative for a signal.

        Raises:
            TimeoutError: it goes on.
        """

        def codes() -> list[int]:
            return [entry["exit"] for entry in self.log if entry["src"] == name and "exit" in entry]

        with self._news:
            if self._news.wait_for(codes, timeout):
                return codes()[-1]
        raise TimeoutError(f"{name} did not end in {timeout} s")

    def signal(self, name: str, do: str, tree: bool = False) -> Entry:
        """Send a signal to a process, or to all of its session."""
        process = self.processes[name]
        if process.poll() is None:
            (os.killpg if tree else os.kill)(process.pid, SIGNALS[do])
        return self.note("rig", did=do, to=name, pid=process.pid)

    def stop(self) -> None:
        """Kill what is left."""
        for name, process in self.processes.items():
            if process.poll() is None:
                self.signal(name, "kill", tree=True)
                process.wait()
        for reader in self._readers:
            reader.join()

    def _events(self, name: str, event: str | None) -> list[Entry]:
        mine = [entry for entry in self.log if entry["src"] == name and "line" in entry]
        return [entry for entry in mine if event in (None, entry["line"].get("event"))]

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                try:
                    value = json.loads(line)
                except ValueError:
                    value = None
                if isinstance(value, dict):
                    self.note(name, line=value)
                else:
                    self.note(name, text=line.rstrip())
        self.note(name, exit=process.wait())


def run_plan(plan: Mapping[str, Any], echo: Callable[[str], object] | None = None) -> list[Entry]:
    """Run a plan (see the module) and return its record."""
    with Harness(echo) as harness:
        steps = [threading.Thread(target=_step, args=(harness, plan, step), daemon=True) for step in plan["steps"]]
        agents: dict[str, dict[str, Any]] = {
            name: {"cmd": spec} if isinstance(spec, list) else spec for name, spec in plan["agents"].items()
        }
        for step in steps:
            step.start()
        for name, spec in sorted(agents.items(), key=lambda item: item[1].get("start", 0.0)):
            _sleep_until(harness, spec.get("start", 0.0))
            harness.start(name, spec["cmd"], spec.get("env"))
        while time.monotonic() < harness.began + plan["end"]:
            if all(process.poll() is not None for process in harness.processes.values()):
                break
            time.sleep(0.05)
    return harness.log


def _sleep_until(harness: Harness, seconds: float) -> None:
    time.sleep(max(0.0, harness.began + seconds - time.monotonic()))


def _step(harness: Harness, plan: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    tree = step.get("tree", False)
    try:
        if "after" in step:
            harness.wait_event(step["of"], step["after"], plan["end"], step.get("count", 1))
            time.sleep(step.get("wait", 0.0))
        else:
            _sleep_until(harness, step["at"])
        harness.signal(step["to"], step["do"], tree)
        if step["do"] == "stop" and "for" in step:
            time.sleep(step["for"])
            harness.signal(step["to"], "cont", tree)
    except (TimeoutError, KeyError) as exc:
        harness.note("rig", failed=str(exc))


def main(arguments: list[str] | None = None) -> int:
    """Run the plan in a file and print its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    args = parser.parse_args(arguments)
    run_plan(json.loads(args.plan.read_text()), print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
