"""Runs everything on this machine: preparation, the node script, the export, one after the other."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from ftcore.spec.events import ATTEMPT
from ftcore.spec.resolved import Host
from ftcore.spec.run_dir import RunDir
from launcher.backends.base import Launch
from launcher.children import Child, Event, StopSignals, run_child, starting, stop_signals
from launcher.failure import Failure, RunStoppedError, as_error, first_rank_failure, resume_advice, step_failure
from launcher.processes import exit_status
from launcher.progress import Progress
from launcher.record import Record
from launcher.run_folder import newest_checkpoint, shown
from launcher.summary import render_summary
from launcher.topology import check_local_launch, local_accelerators

STEP_GRACE_S = 4.0
"""For preparation and export after SIGTERM."""
LOOPBACK = "127.0.0.1"
NODE_GRACE_S = 8.0
"""For the supervisor, which gives its ranks 4 s of their own."""


class LocalBackend:
    """The ranks of one host, this one."""

    def check(self, hosts: tuple[Host, ...]) -> None:
        """Raises ClusterError unless the one host is this machine."""
        check_local_launch(hosts, local_accelerators())

    def run(self, launch: Launch, progress: Progress) -> str:
        """See `Backend.run`."""
        run_dir = launch.run_dir
        command = f"ftlaunch --resume {shlex.quote(shown(run_dir.path))}"
        environment = {**with_rendezvous(launch.environment), ATTEMPT: str(launch.attempt)}
        for note in rendezvous_notes(launch.environment) if launch.trains else ():
            progress.line(note)
        with stop_signals() as stop:
            steps = Steps(run_dir.attempt_logs(launch.attempt), environment, progress, stop, advice=lambda: launch.advice or resume_advice(run_dir, command))
            steps.run("the preparation", "prepare.log", launch.prepare)
            if launch.trains:
                steps.run_ranks(launch)
                if launch.export is not None:
                    steps.run("the export", "export.log", launch.export)
            progress.flush()
        return summary(launch, steps.record) if launch.trains else ""


class Steps:
    """Runs processes one after the other, shows what they tell, and turns a bad end into an FtError."""

    def __init__(self, logs: Path, environment: Mapping[str, str], progress: Progress, stop: StopSignals, *, advice: Callable[[], str]) -> None:
        self.logs = logs
        self.record = Record()
        self._environment = environment
        self._progress = progress
        self._stop = stop
        self._advice = advice
        """How to go on after a bad end."""
        self._on_failure_event: Callable[[Event], None] = lambda event: None

    def run(self, who: str, log_name: str, argv: tuple[str, ...]) -> None:
        """One process, logging to `log_name`. Raises its FtError, or RunStoppedError after a signal to the launcher."""
        log = self.logs / log_name
        status = self._run_child(Child(argv=argv, environment=self._environment, log=log, grace_s=STEP_GRACE_S, death_signal=signal.SIGKILL))
        if status != 0:
            self._fail(step_failure(who, status, self.record, log))

    def run_ranks(self, launch: Launch) -> None:
        """The script of node 0, which ends when all ranks have. Raises like `run`, for the rank that failed first."""
        self._require_going_on()
        run_dir, attempt, log = launch.run_dir, launch.attempt, self.logs / "node_0.log"
        self._progress.line(f"starting {launch.resolved.world_size} ranks; their logs are in {shown(self.logs)}")
        child = Child(
            argv=(bash(), str(run_dir.node_script(0))),
            environment=self._environment,
            log=log,
            grace_s=NODE_GRACE_S,
            # The supervisor still has to end its ranks then.
            death_signal=signal.SIGTERM,
            keep_open=(launch.lock_handle,),
        )
        self._on_failure_event = lambda event: append_event(run_dir, event, attempt)
        status = self._run_child(child)
        if status != 0:
            self._fail(first_rank_failure(self.record, run_dir, attempt) or step_failure("the supervisor of the ranks", status, self.record, log))

    def _run_child(self, child: Child) -> int:
        """Exit status of the child. Raises RunStoppedError when a signal ended it, or came before it was started."""
        self._require_going_on()
        status = exit_status(run_child(child, self._stop, self._on_event, self._on_stop))
        if status != 0:
            self._require_going_on()
        return status

    def _require_going_on(self) -> None:
        """Raises RunStoppedError when a signal has asked for the end."""
        if self._stop.requested:
            self._progress.flush()
            raise RunStoppedError(self._stop.requested, self._advice())

    def _on_event(self, event: Event) -> None:
        self.record.add(event)
        self._progress.show(event)
        if event["event"] in ("error", "rank_exit"):
            self._on_failure_event(event)

    def _on_stop(self) -> None:
        self._progress.line(f"{signal.Signals(self._stop.requested).name}: ending all processes of the run ...")

    def _fail(self, failure: Failure) -> NoReturn:
        self._progress.flush()
        raise as_error(failure, self._advice())


def summary(launch: Launch, record: Record) -> str:
    """The text that a finished launch ends with."""
    run_dir, saved = launch.run_dir, newest_checkpoint(launch.run_dir)
    return render_summary(
        record,
        run_folder=shown(run_dir.path),
        model_folder=shown(run_dir.model) if launch.export is not None else None,
        checkpoint=shown(saved) if saved is not None else None,
    )


def bash() -> str:
    """The shell for node scripts, by its full name where it lies where it usually does: PATH may be empty."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), "bash")


def with_rendezvous(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with a place for the ranks of this machine to meet: loopback, and a port that is free now.

    What it said before is for another launch: ranks would wait minutes for an address that is not this machine's.
    """
    chosen = {**environment, "MASTER_ADDR": LOOPBACK}
    with starting("the ranks"), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        chosen["MASTER_PORT"] = str(probe.getsockname()[1])
    # gloo would take the first address of this machine's name, which need not be reachable, or exist.
    if os.path.isdir("/sys/class/net/lo"):
        chosen.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return chosen


def rendezvous_notes(environment: Mapping[str, str]) -> list[str]:
    """Says which of the user's variables `with_rendezvous` puts aside; nothing of an address that means the same."""
    same = {("MASTER_ADDR", LOOPBACK), ("MASTER_ADDR", "localhost")}
    given = [(name, environment[name]) for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment]
    aside = [f"{name}={value}" for name, value in given if (name, value) not in same]
    return [f"not used: {', '.join(aside)}; the ranks of this machine meet at {LOOPBACK} and a free port"] if aside else []


def append_event(run_dir: RunDir, event: Event, attempt: int) -> None:
    """Adds one line to events.jsonl, where ranks write too. A disk that is full must not hide the error itself."""
    try:
        with run_dir.events.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**event, "attempt": attempt}) + "\n")
    except OSError:
        return
