"""One launch of a run, as the backends take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.transport import Reach, SshOptions

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a run whose folder is written and locked."""

    run_dir: RunDir
    resolved: ResolvedSpec
    attempt: int
    """Which launch of the run this is, from 1."""
    environment: Mapping[str, str]
    """For every process of the run on this machine, all of it."""
    lock_handle: int
    """Descriptor of the folder's lock."""
    prepare: tuple[str, ...]
    """argv of the preparation."""
    export: tuple[str, ...] | None
    """argv of what writes RUN/model after training; None: nothing does."""
    keeps: bool = True
    """False: whoever launches it deletes what it saved, so that its end names no checkpoint."""
    trains: bool = True
    """False: ends after the preparation, before a rank starts."""
    advice: str = ""
    """How to go on after a bad end; empty: by a resume."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the user gave for the run's processes (--env-file); `environment` holds it too."""
    env_file: str = ""
    """The file that they are from; empty: there is none."""
    reach: Reach = field(default_factory=lambda: Reach(launcher="ssh", ssh=SshOptions()))
    """How the hosts are reached."""
    master_addr: str = LOOPBACK
    """Where rank 0 is met."""
    master_port: int | None = None
    """None: a free one is found on the host of rank 0."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """In rank order."""
        return self.resolved.hosts
