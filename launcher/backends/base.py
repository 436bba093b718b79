"""What every backend offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a run whose folder is written and locked."""

    run_dir: RunDir
    resolved: ResolvedSpec
    attempt: int
    """Which launch of the run this is, from 1."""
    environment: Mapping[str, str]
    """For every process of the run, all of it."""
    lock_handle: int
    """Descriptor of the folder's lock."""
    prepare: tuple[str, ...]
    """argv of the preparation."""
    export: tuple[str, ...] | None
    """argv of what writes RUN/model after training; None: nothing does."""
    trains: bool = True
    """False: ends after the preparation, before a rank starts."""
    advice: str = ""
    """How to go on after a bad end; empty: by a resume."""


class Backend(Protocol):
    """Turns a run into processes on its hosts, watches them and tears them down."""

    def check(self, hosts: tuple[Host, ...]) -> None:
        """Raises ClusterError when this backend can't run on these hosts."""

    def run(self, launch: Launch, progress: Progress) -> str:
        """Runs the launch to its end and returns the summary to print; leaves no process behind.

        Raises the FtError of what failed first, or RunStoppedError after a signal.
        """
