"""How a run goes on after a finding: the command lines, with what a resume may change in them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from launcher.failure import resume_command
from launcher.findings.finding import Knob
from launcher.findings.seen import Seen
from launcher.run_folder import has_checkpoints, newest_checkpoint, update_of


def resume_lines(seen: Seen, knobs: Sequence[Knob] = (), *, needs_change: bool = False) -> tuple[str, ...]:
    """The resume, with the cheapest change that it may take; and a new run for what a resume may not change.

    `needs_change`: without one the same would happen again.
    """
    if seen.is_running:
        return ()
    run_dir = seen.record.run_dir
    if newest_checkpoint(run_dir) is None and has_checkpoints(run_dir):
        return (f"ftlaunch checkpoints verify {shlex.quote(str(run_dir.path))}   (every checkpoint is damaged: a resume would refuse)",)
    enough = [knob for knob in knobs if knob.is_enough is not False] or list(knobs)
    chosen = next((knob for knob in enough if knob.may_resume), None)
    lines = []
    if chosen is not None or not needs_change:
        options = f" {chosen.options}" if chosen is not None else ""
        lines.append(f"{resume_command(run_dir, _env_file(seen))}{options}   ({from_where(seen)})")
    others = next((knob for knob in enough if not knob.may_resume), None)
    if others is not None and chosen is None:
        lines.append(f"a new run, as this one was launched, with {others.options} -o NEW   (a resume can't change that)")
    return tuple(lines)


def from_where(seen: Seen) -> str:
    """Where a resume begins."""
    checkpoint = newest_checkpoint(seen.record.run_dir)
    return f"goes on after update {update_of(checkpoint)}" if checkpoint is not None else "no checkpoint yet: begins at the first update"


def _env_file(seen: Seen) -> str:
    started = seen.events("launch_started")
    return str(started[-1].get("env_file") or "") if started else ""
