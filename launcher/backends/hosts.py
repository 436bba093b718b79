"""Runs a launch: preparation here, the ranks on all hosts, the export here, one after the other."""

from __future__ import annotations

import contextlib

from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import ATTEMPT
from ftcore.spec.run_record import read_run, totals
from launcher.backends.base import Launch
from launcher.backends.lines import environment_notes
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.events_file import append_event
from launcher.failure import resume_advice, resume_command
from launcher.memory.model_flops import write_model_work
from launcher.progress import Progress
from launcher.record import Record
from launcher.run_folder import newest_checkpoint, shown
from launcher.summary import render_summary


def run_launch(launch: Launch, progress: Progress) -> Record:
    """Runs the launch to its end and returns what was heard of it; leaves no process behind on any host.

    Raises the FtError of what failed first, or RunStoppedError after a signal.
    """
    run_dir = launch.run_dir
    command = resume_command(run_dir, launch.env_file)
    environment = {**launch.environment, ATTEMPT: str(launch.attempt)}
    for note in meeting_notes(launch) if launch.trains else ():
        progress.line(note)
    with stop_signals() as stop:
        steps = Steps(
            run_dir.attempt_logs(launch.attempt),
            environment,
            progress,
            stop,
            advice=lambda: launch.advice or resume_advice(run_dir, command),
            on_failure=lambda event: append_event(run_dir, event, launch.attempt),
        )
        steps.run("the preparation", "prepare.log", launch.prepare)
        if launch.trains:
            write_model_work(run_dir, launch.resolved)
            steps.run_ranks(launch)
            if launch.export is not None:
                steps.run("the export", "export.log", launch.export)
        progress.flush()
    return steps.record


def summary(launch: Launch, record: Record) -> str:
    """The text that a finished launch ends with, once its end is told in events.jsonl: before, the device time would lack what came after its last event."""
    run_dir, saved = launch.run_dir, newest_checkpoint(launch.run_dir) if launch.keeps else None
    sums = None
    with contextlib.suppress(CheckpointError):
        sums = totals(read_run(run_dir.path, with_ranks=False))
    return render_summary(
        record,
        run_folder=shown(run_dir.path),
        model_folder=shown(run_dir.model) if launch.export is not None else None,
        checkpoint=shown(saved) if saved is not None else None,
        sums=sums,
    )


def meeting_notes(launch: Launch) -> list[str]:
    """Which variables reach other hosts; and which of the user's are put aside, since they name a place to meet that is not this launch's."""
    notes = environment_notes(launch)
    same = {("MASTER_ADDR", launch.master_addr), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", str(launch.master_port))}
    given = [(name, launch.environment[name]) for name in ("MASTER_ADDR", "MASTER_PORT") if name in launch.environment]
    aside = [f"{name}={value}" for name, value in given if (name, value) not in same]
    port = f"port {launch.master_port}" if launch.master_port else "a free port"
    return [*notes, *([f"not used: {', '.join(aside)}; the ranks meet at {launch.master_addr} and {port}"] if aside else [])]
