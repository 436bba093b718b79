"""Runs the processes of a launch one after the other: preparation, the ranks of all hosts, export. A bad end becomes an FtError."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from ftcore.spec.errors import PREEMPTED
from launcher.backends.base import Launch
from launcher.backends.deepspeed_group import DeepSpeedGroup, uses_deepspeed
from launcher.backends.host_group import Ending, HostGroup, Rules
from launcher.backends.lines import headers, host_lines
from launcher.backends.remote_sweep import sweep_hosts
from launcher.backends.stall import Limits
from launcher.children import Child, Event, StopSignals, run_child
from launcher.events_file import append_event
from launcher.failure import Failure, RunStoppedError, as_error, failure_event, step_failure
from launcher.group_failure import group_failure
from launcher.processes import LAUNCH_ID, PREEMPTING, exit_status, sweep
from launcher.progress import Progress
from launcher.record import Record
from launcher.run_folder import shown

STEP_GRACE_S = 4.0
"""For preparation and export after SIGTERM."""


class Steps:
    """Runs processes one after the other, shows what they tell, and turns a bad end into an FtError."""

    def __init__(
        self,
        logs: Path,
        environment: Mapping[str, str],
        progress: Progress,
        stop: StopSignals,
        *,
        advice: Callable[[], str],
        on_failure: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.logs = logs
        self.record = Record()
        self._environment = environment
        self._progress = progress
        self._stop = stop
        self._advice = advice
        """How to go on after a bad end."""
        self._on_failure_event = on_failure
        """Where it is kept what a process said of its end."""

    def run(self, who: str, log_name: str, argv: tuple[str, ...]) -> None:
        """One process, logging to `log_name`. Raises its FtError, or RunStoppedError after a signal to the launcher."""
        self._require_going_on()
        log = self.logs / log_name
        child = Child(argv=argv, environment=self._environment, log=log, grace_s=STEP_GRACE_S, death_signal=signal.SIGKILL)
        status = exit_status(run_child(child, self._stop, self._on_event, self._on_stop))
        if status != 0:
            self._require_going_on()
            self._fail(step_failure(who, status, self.record, log))

    def run_ranks(self, launch: Launch) -> None:
        """The supervisors of all hosts, which end when all ranks have. Raises like `run`, for what failed first."""
        self._require_going_on()
        cluster = launch.resolved.spec.cluster
        ranks = launch.resolved.world_size
        self._progress.line(f"starting {ranks} rank{'s' if ranks > 1 else ''}; logs are in {shown(self.logs)}")
        hang = Limits(start_s=cluster.start_timeout, stall_s=cluster.stall_timeout)
        rules = Rules(heartbeat_timeout=cluster.heartbeat_timeout, hang=hang, preempt_grace=cluster.preempt_grace)
        group: HostGroup | DeepSpeedGroup
        if uses_deepspeed(launch):
            group = DeepSpeedGroup(launch, rules, on_event=self._on_event)
        else:
            group = HostGroup(host_lines(launch), headers(launch), rules, on_event=self._on_event)
        try:
            with self._progress.never_waiting():
                ending = group.run(self._stop, self._on_stop)
        finally:
            sweep(launch.environment[LAUNCH_ID])
        for note in sweep_hosts(launch, ending):
            self._progress.line(note)
        self._conclude(ending, launch)

    def _conclude(self, ending: Ending, launch: Launch) -> None:
        """Raises for an end that is not the end of the training."""
        if self._stop.requested and self._stop.requested not in PREEMPTING:
            self._require_going_on()
        failure = group_failure(self.record, ending, launch)
        if failure is not None:
            append_event(launch.run_dir, failure_event(failure, launch.run_dir, ending.stall_places), launch.attempt)
            self._fail(failure)
        if ending.saved_late:
            self._progress.flush()
            signum = self._stop.requested or signal.SIGTERM
            raise RunStoppedError(signum, self._advice(), late_s=launch.resolved.spec.cluster.preempt_grace)
        if self._stop.requested or PREEMPTED in ending.statuses.values():
            self._progress.flush()
            is_done = set(ending.statuses.values()) == {0} and not ending.lost
            lost = self.record.first_update is not None and self.record.saved is None and not is_done
            raise RunStoppedError(self._stop.requested or self.record.preempted_by, self._advice(), lost=lost, saved=self.record.saved is not None)

    def _require_going_on(self) -> None:
        """Raises RunStoppedError when a signal has asked for the end."""
        if self._stop.requested:
            self._progress.flush()
            raise RunStoppedError(self._stop.requested, self._advice())

    def _on_event(self, event: Event) -> None:
        self.record.add(event)
        self._progress.show(event)
        if event["event"] in ("error", "rank_exit", "preempt", "stacks"):
            self._on_failure_event(event)

    def _on_stop(self) -> None:
        name = signal.Signals(self._stop.requested).name
        saves = self._stop.requested in PREEMPTING and self.record.trains
        self._progress.line(f"{name}: {'saving after this update, then ending' if saves else 'ending all processes of the run'} ...")

    def _fail(self, failure: Failure) -> NoReturn:
        self._progress.flush()
        raise as_error(failure, self._advice())
