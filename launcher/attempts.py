"""The attempts of one launch: the first, and after the failure of a host or a connection as many more as the spec allows, each from the newest checkpoint."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ftcore.spec.errors import ClusterError, FtError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach, approach_hosts
from launcher.backends.base import Launch
from launcher.backends.hosts import run_launch, summary
from launcher.children import stop_signals
from launcher.environment import launch_environment
from launcher.events_file import append_event
from launcher.failure import RunFailedError, RunStoppedError, first_line, resume_advice, resume_command, with_doctor
from launcher.folder_files import write_host_files
from launcher.preflight.finding import UnfitHostsError
from launcher.progress import Progress
from launcher.reporting.page import write_at_end
from launcher.resuming import resolve_again
from launcher.run_change import change_run, tell_change
from launcher.run_environment import write_environment
from launcher.run_folder import next_attempt, shown
from launcher.spec_source import Options

PAUSES_S = (2.0, 10.0, 30.0)
"""Before each restart; the last one counts for all that follow."""
RETURN_LIMIT_S = 300.0
"""How long a restart waits for a host that was lost, where the run does not go on without it."""
LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a run is launched, apart from what it computes."""

    dry_run: bool
    """Write the folder and the plan, start no rank."""
    exports: bool
    """Write RUN/model at the end."""
    variables: Mapping[str, str]
    """For the run's processes, from --env-file."""
    keeps: bool = True
    """False: its caller deletes what it saved."""
    reports: bool = False
    """Write RUN/report.html at the end."""
    launcher: str = ""
    """How the hosts are reached, in place of what the spec says; empty: as the spec says."""
    advice: str = ""
    """How to go on after a bad end; empty: by a resume."""
    env_file: str = ""
    """The file of `variables`, absolute: a resume needs it again."""
    force: bool = False
    """Launch what does not fit in memory by the ledger."""
    data_change_allowed: float = 0.0
    """When somebody said that the run may go on with other training data, in seconds since the epoch; 0: nobody did. It is good for one change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A run's folder, locked for this launch."""

    run_dir: RunDir
    lock_handle: int
    manner: Manner


def launch(owned: Owned, resolved: ResolvedSpec, approach: Approach, *, told: str = "") -> None:
    """Runs the run to its end and shows the summary; `told` is added to what is said at the start.

    Raises what ended it: a failure of a machine only when no restart is left, or the hosts don't come back.
    """
    progress, run_dir = Progress(sys.stdout), owned.run_dir
    for restarts in range(resolved.spec.cluster.max_restarts + 1):
        progress.line(describe(run_dir, resolved) + told)
        try:
            progress.line(_attempt(owned, resolved, approach, progress))
            if owned.manner.reports and not owned.manner.dry_run:
                write_at_end(run_dir, progress)
            return
        except RunFailedError as failure:
            if not failure.is_infrastructure or restarts == resolved.spec.cluster.max_restarts:
                raise _explained(failure, run_dir) from failure
            progress.line(f"{failure.brief}\nrestart {restarts + 1} of {resolved.spec.cluster.max_restarts}{resume_advice(run_dir, '')}")
            append_event(run_dir, {"event": "restart", "time": time.time(), "number": restarts + 1, "reason": first_line(failure)}, next_attempt(run_dir))
            resolved, approach, told = _stand_again(owned, resolved, restarts, failure, progress)


def _explained(failure: RunFailedError, run_dir: RunDir) -> RunFailedError:
    """The failure with a word on the doctor's page, which is written now."""
    from launcher.findings.files import write_quietly

    return with_doctor(failure, run_dir, is_written=write_quietly(run_dir))


def _attempt(owned: Owned, resolved: ResolvedSpec, approach: Approach, progress: Progress) -> str:
    """One attempt, with its beginning and its end in events.jsonl; returns what it ends with, as text."""
    run_dir, manner = owned.run_dir, owned.manner
    python, run, attempt = sys.executable, str(run_dir.path), next_attempt(run_dir)
    started = Launch(
        run_dir=run_dir,
        resolved=resolved,
        attempt=attempt,
        environment=launch_environment(manner.variables),
        lock_handle=owned.lock_handle,
        prepare=(python, "-m", "ftcore.prepare", run),
        export=(python, "-m", "ftcore.export", run, "--to", str(run_dir.model)) if manner.exports else None,
        trains=not manner.dry_run,
        keeps=manner.keeps,
        advice=manner.advice,
        variables=manner.variables,
        reach=approach.reach,
        master_addr=approach.master_addr,
        master_port=approach.master_port,
        env_file=manner.env_file,
    )
    if manner.dry_run:
        run_launch(started, progress)
        return _dry_run_text(run_dir)
    hosts = [host.name for host in resolved.hosts]
    begun = {"launcher": approach.reach.launcher, "hosts": hosts, "pid": os.getpid(), "host": socket.gethostname(), "env_file": manner.env_file}
    begun["world_size"] = resolved.world_size
    if manner.data_change_allowed:
        begun["data_change_allowed"] = manner.data_change_allowed
    write_environment(run_dir, resolved, approach, manner.variables)
    append_event(run_dir, {"event": "launch_started", "time": time.time(), **begun}, attempt)
    status, reason, clock = 1, "a bug", time.monotonic()
    try:
        heard = run_launch(started, progress)
        status, reason = 0, "done"
    except FtError as error:
        status, reason = error.exit_status, first_line(error)
        raise
    finally:
        # Counted, since somebody may set the clock meanwhile.
        seconds = time.monotonic() - clock
        append_event(run_dir, {"event": "launch_ended", "time": time.time(), "seconds": seconds, "status": status, "reason": reason}, attempt)
    return summary(started, heard)


def _stand_again(owned: Owned, resolved: ResolvedSpec, restarts: int, failure: RunFailedError, progress: Progress) -> tuple[ResolvedSpec, Approach, str]:
    """Waits until hosts are fit, and says which the next attempt runs on. Raises `failure` when they don't come back, RunStoppedError after a signal."""
    run_dir, manner, cluster = owned.run_dir, owned.manner, resolved.spec.cluster
    give_up = time.monotonic() + RETURN_LIMIT_S
    _pause(PAUSES_S[min(restarts, len(PAUSES_S) - 1)], owned)
    wanted = resolved
    while True:
        try:
            approach = approach_hosts(wanted, run_dir.path, variables=manner.variables, launcher=manner.launcher)
            if wanted is resolved:
                return resolved, approach, ""
            change_run(run_dir, resolved, wanted)
            write_host_files(run_dir, wanted, approach)
            return wanted, approach, tell_change(run_dir, wanted)
        except UnfitHostsError as unfit:
            if cluster.elastic and 0 < len(unfit.hosts) < len(wanted.hosts):
                progress.line(f"going on without {', '.join(sorted(unfit.hosts))}")
                wanted = resolve_again(wanted, Options(exclude="@".join(unfit.hosts)), next_attempt(run_dir))
                continue
            if time.monotonic() > give_up:
                raise _explained(failure, run_dir) from unfit
            progress.line(f"waiting for the hosts: {first_line(unfit)}")
        except ClusterError as error:
            raise _explained(failure, run_dir) from error
        _pause(LOOK_AGAIN_S, owned)


def _pause(seconds: float, owned: Owned) -> None:
    """Waits; raises RunStoppedError as soon as a signal asks for an end."""
    with stop_signals() as stop:
        end = time.monotonic() + seconds
        while not stop.requested and (left := end - time.monotonic()) > 0:
            select.select([stop.handle], [], [], left)
            stop.drain()
        if stop.requested:
            run_dir, manner = owned.run_dir, owned.manner
            raise RunStoppedError(stop.requested, manner.advice or resume_advice(run_dir, resume_command(run_dir, manner.env_file)))


def describe(folder: RunDir, resolved: ResolvedSpec, kind: str = "run folder") -> str:
    """What is about to run, in a few lines; `kind` is what the folder is called."""
    hosts = ", ".join(f"{host.name}: {host.slots}" for host in resolved.hosts)
    return f"{kind}: {shown(folder.path)}\nworld size: {resolved.world_size} ({hosts}), ZeRO stage {resolved.spec.zero.stage}"


def _dry_run_text(run_dir: RunDir) -> str:
    plan = run_dir.plan_txt.read_text(encoding="utf-8") if run_dir.plan_txt.is_file() else ""
    return f"{plan}dry run: no rank was started; `ftlaunch --resume {shown(run_dir.path)}` starts the run as it stands"
