"""Where the output of workers goes: untouched, into files, or both with a prefix for people.

Files never clash, also in a directory that all nodes share::

    LOG_DIR/RUN_ID/HOST_PID/round_N/LOCAL_RANK/stdout.log and stderr.log

RUN_ID and HOST are percent-encoded, so that a run id such as ``../x`` stays a name. A second agent of the same host,
process id and run (containers) gets ``HOST_PID.2`` and so on.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from ..text import printable

__all__ = ("LogDirectory", "OutputPlan", "OutputSpec", "Outputs", "fit_lines", "last_lines", "parse_output_spec")

#: Standard output and standard error, as torch's launcher numbers them.
_OUT, _ERR = 1, 2
#: Most lines and characters of each that are shown of a worker that failed.
_LINES, _WIDTH = 15, 400
_MOST = 1000


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Which streams an option is about.

    Attributes:
        common: 0 none, 1 standard output, 2 standard error, 3 both: for every worker that ``workers`` does not name.
        workers: The same by local rank.
    """

    common: int = 0
    workers: Mapping[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.common or any(self.workers.values()))

    def covers(self, local_rank: int, stream: int) -> bool:
        """Whether a stream of a worker is meant."""
        return bool(self.workers.get(local_rank, self.common) & stream)


def parse_output_spec(text: str) -> OutputSpec:
    """Read ``3`` (both streams of every worker) or ``0:3,1:2`` (by local rank), as torch's launcher has it.

    Raises:
        ValueError: the text is neither.
    """
    if re.fullmatch(r"\s*[0-3]\s*", text):
        return OutputSpec(int(text))
    workers: dict[int, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,6})\s*:\s*([0-3])\s*", part)
        if found is None or int(found[1]) in workers:
            raise ValueError(
                f"{text!r} is neither 0 (none), 1 (standard output), 2 (standard error) or 3 (both), nor a map from "
                "local ranks to these such as 0:3,1:2."
            )
        workers[int(found[1])] = int(found[2])
    return OutputSpec(0, workers)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the output of one worker goes, in the words of the supervisor.

    Attributes:
        out: Standard output.
        err: Standard error; by default through the supervisor, which passes it on and keeps its end.
        prefix: In front of each line for people.
    """

    out: str = "="
    err: str = "|"
    prefix: str = ""


class LogDirectory:
    """A directory of this agent alone, for one run.

    Args:
        base: What the user gave; None for a new temporary directory.
        run_id: The run.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, base: Path | None, run_id: str) -> None:
        if base is None:
            base = Path(tempfile.mkdtemp(prefix="arendezvous_"))
        host = quote(socket.gethostname() or "host", safe="")
        parent = base.absolute() / _name(run_id)
        parent.mkdir(parents=True, exist_ok=True)
        for k in range(1, _MOST):
            self.path = parent / (f"{host}_{os.getpid()}" + (f".{k}" if k > 1 else ""))
            try:
                self.path.mkdir()
                return
            except FileExistsError:
                continue
        raise FileExistsError(f"{parent} has {_MOST} directories of {host}_{os.getpid()}")

    def make(self, round_number: int, local_rank: int) -> Path:
        """The directory of a worker in a round, made if need be.

        Raises:
            OSError: it cannot be made.
        """
        path = self.path / f"round_{round_number}" / str(local_rank)
        path.mkdir(parents=True, exist_ok=True)
        return path


def _name(run_id: str) -> str:
    """A run id as one name: no run id leads out of the directory or into that of another."""
    name = quote(run_id, safe="")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    if len(name) > 200:
        # Names have at most 255 bytes; the whole run id would make a directory nobody can make.
        from hashlib import sha256

        name = f"{name[:150]}%{sha256(run_id.encode()).hexdigest()[:16]}"
    return name


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """What the options say about output.

    Attributes:
        directory: Where log files go; None for a temporary directory if there are to be any.
        redirects: Streams that go to files and nowhere else.
        tee: Streams that go to files and, with a prefix, to the agent's own.
    """

    directory: Path | None = None
    redirects: OutputSpec = OutputSpec()
    tee: OutputSpec = OutputSpec()

    @property
    def has_files(self) -> bool:
        """Whether there are to be log files."""
        return bool(self.directory or self.redirects or self.tee)

    def outputs(self, files: LogDirectory, round_number: int, local_rank: int, role: str) -> Outputs:
        """Where the output of a worker goes.

        A directory alone means a tee of everything: whoever asks for files does not ask for silence.

        Raises:
            OSError: its directory cannot be made.
        """
        everything = not self.redirects and not self.tee
        words = []
        for stream, name, plain in ((_OUT, "stdout", "="), (_ERR, "stderr", "|")):
            if everything or self.tee.covers(local_rank, stream):
                words.append(f"+{files.make(round_number, local_rank) / name}.log")
            elif self.redirects.covers(local_rank, stream):
                words.append(f">{files.make(round_number, local_rank) / name}.log")
            else:
                words.append(plain)
        return Outputs(words[0], words[1], f"[{role}{local_rank}]:")


def last_lines(data: bytes) -> tuple[str, ...]:
    """The last lines of what a worker wrote, fit to be shown anywhere."""
    return fit_lines(data.decode(errors="replace").replace("\r", "\n").split("\n"))


def fit_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The last of these lines that are not empty: bounded, and nothing in them moves a cursor."""
    shown = [text for line in lines if (text := printable(line.rstrip().expandtabs(4)))][-_LINES:]
    return tuple(line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in shown)
