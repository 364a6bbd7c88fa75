"""The elastic launcher behind ``arendezvous run``: real worker processes that follow the membership."""

from __future__ import annotations

from .elastic import AgentConfig, ElasticAgent, ExitStatus, run_agent
from .environment import WorkerSpec, worker_argv, worker_specs
from .workers import WorkerExit, WorkerGroup

__all__ = (
    "AgentConfig",
    "ElasticAgent",
    "ExitStatus",
    "WorkerExit",
    "WorkerGroup",
    "WorkerSpec",
    "run_agent",
    "worker_argv",
    "worker_specs",
)
