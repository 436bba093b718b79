"""What a submission needs of cluster.scheduler beyond what makes a spec right: how many ranks a host gets."""

from __future__ import annotations

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import Problem
from launcher.slurm_time import NO_LIMIT, parse_slurm_time

SECTION = "cluster.scheduler"
EARLY_S = 60
"""Slurm may send the warning so much earlier than asked (man sbatch, --signal)."""

NO_SLOTS = "nobody says how many ranks a host gets"


def check_submission(scheduler: SchedulerSection) -> list[Problem]:
    """Every problem; empty when the section can be submitted."""
    if scheduler.slots_per_node is not None:
        return []
    fix = "add --slots-per-node N, the accelerators of a host that the run takes (with --cpu: the ranks)"
    return [Problem(what=NO_SLOTS, where=f"{SECTION}.slots_per_node", fix=fix)]


def submission_warnings(scheduler: SchedulerSection) -> tuple[str, ...]:
    """What is allowed and odd about the section."""
    seconds = parse_slurm_time(scheduler.time) if scheduler.time else NO_LIMIT
    least = scheduler.signal_lead + 2 * EARLY_S
    if seconds == NO_LIMIT or seconds >= least:
        return ()
    asked = f"it is asked to save {scheduler.signal_lead} s before the end (signal_lead), and Slurm may ask {EARLY_S} s earlier"
    return (f"of its {seconds} s the run may have few: {asked}",)


def asks_for(scheduler: SchedulerSection, *names: str) -> bool:
    """Whether sbatch_args hold one of these options."""
    return any(text.partition("=")[0] in [f"--{name}" for name in names] for text in scheduler.sbatch_args)
