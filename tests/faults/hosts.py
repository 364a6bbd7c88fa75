"""Hosts that vanish without closing a connection.

::

    with Hosts(["a", "b"]) as net:
        process = net.popen("a", [...])     # listens on net.address("a")
        net.cut("a")
        net.heal("a")

Each host is a network namespace on one bridge, which is in a namespace of its own: nothing of the machine's network is
touched. That needs root and ``ip`` of iproute2. Where it is not possible, the hosts are loopback addresses, and a cut
stops the processes of the host instead: their kernel goes on acknowledging, but as for everybody else they are gone.
``python -m tests.faults.hosts clean`` removes namespaces that a killed test has left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("Hosts", "clean")

_PREFIX = "ardzv"
_LISTEN = 10
_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    11: "CLOSING",
}


def _ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], check=check, capture_output=True, text=True)
    return done.stdout


class Hosts:
    """A network of hosts, each with an address of its own.

    Args:
        names: What the hosts are called; short, for network devices are named after them.
        namespaces: False forces the way without namespaces.

    Attributes:
        namespaces: Whether the hosts are network namespaces.
    """

    def __init__(self, names: Sequence[str], *, namespaces: bool = True) -> None:
        self.names = list(names)
        self.namespaces = namespaces
        self._tag = f"{_PREFIX}{os.getpid()}"
        self._processes: dict[str, list[subprocess.Popen[Any]]] = {name: [] for name in names}
        self._cut: set[str] = set()

    def __enter__(self) -> Self:
        if self.namespaces:
            try:
                self._build()
            except (OSError, subprocess.CalledProcessError):
                self._tear_down()
                self.namespaces = False
        return self

    def __exit__(self, *_: object) -> None:
        for process in [process for processes in self._processes.values() for process in processes]:
            with process:
                if process.poll() is None:
                    # A process that is stopped dies of it too.
                    os.killpg(process.pid, signal.SIGKILL)
        if self.namespaces:
            self._tear_down()

    def address(self, name: str) -> str:
        """The address of a host."""
        number = self.names.index(name) + 1
        if self.namespaces:
            return f"10.77.0.{number}"
        # Another process may run the same test on this machine.
        return f"127.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}.{number}"

    def popen(self, name: str, command: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        """Start a process on a host; it is killed at the end."""
        prefix = ["ip", "netns", "exec", self._namespace(name)] if self.namespaces else []
        process = subprocess.Popen([*prefix, *command], start_new_session=True, **more)
        self._processes[name].append(process)
        return process

    def cut(self, name: str) -> None:
        """Let a host vanish from the network: nothing reaches it or comes from it, and nobody is told."""
        self._cut.add(name)
        if self.namespaces:
            _ip("-n", self._namespace("switch"), "link", "set", f"p-{name}", "down")
        else:
            self._signal(name, signal.SIGSTOP)

    def heal(self, name: str) -> None:
        """Bring a host back."""
        self._cut.discard(name)
        if self.namespaces:
            _ip("-n", self._namespace("switch"), "link", "set", f"p-{name}", "up")
        else:
            self._signal(name, signal.SIGCONT)

    def tcp_states(self, name: str) -> list[str]:
        """The states of a host's TCP sockets that have to do with its address, listening ones left out."""
        address = bytes(map(int, self.address(name).split(".")))[::-1].hex().upper()
        states = []
        for line in self._table(name).splitlines()[1:]:
            local, state = line.split()[1], int(line.split()[3], 16)
            if local.partition(":")[0] == address and state != _LISTEN:
                states.append(_STATES.get(state, str(state)))
        return states

    def _table(self, name: str) -> str:
        if self.namespaces:
            return _ip("netns", "exec", self._namespace(name), "cat", "/proc/net/tcp")
        return Path("/proc/net/tcp").read_text()

    def _signal(self, name: str, number: signal.Signals) -> None:
        for process in self._processes[name]:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _build(self) -> None:
        switch = self._namespace("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for name in self.names:
            host = self._namespace(name)
            _ip("netns", "add", host)
            _ip("-n", switch, "link", "add", f"p-{name}", "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", switch, "link", "set", f"p-{name}", "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", "eth0", "up")

    def _tear_down(self) -> None:
        if shutil.which("ip") is not None:
            for name in [*self.names, "switch"]:
                _ip("netns", "del", self._namespace(name), check=False)


def clean() -> list[str]:
    """Remove namespaces whose test is no longer running; return their names."""
    removed = []
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _ip("netns", "del", name)
            removed.append(name)
    return removed


if __name__ == "__main__":
    print(*clean(), sep="\n")
    sys.exit(0)
