"""What a submission needs of cluster.scheduler beyond what makes a spec right: ranks a host, and no option that `ftlaunch submit` sets itself."""

from __future__ import annotations

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import Problem
from launcher.slurm_time import NO_LIMIT, parse_slurm_time

SECTION = "cluster.scheduler"
EARLY_S = 60
"""Slurm may send the warning so much earlier than asked (man sbatch, --signal)."""

_OURS = {
    "gpus-per-node": "--slots-per-node",
    "tasks-per-node": "--slots-per-node",
    "dependency": "--chain",
    **dict.fromkeys(("uid", "gid", "get-user-env"), "nothing: jobs belong to the user who submits them"),
}
"""Option of sbatch -> what `ftlaunch submit` has in its place."""


def check_submission(scheduler: SchedulerSection) -> list[Problem]:
    """Every problem; empty when the section can be submitted."""
    problems = [problem for text in scheduler.sbatch_args if (problem := _argument(text)) is not None]
    if scheduler.slots_per_node is None:
        fix = "add --slots-per-node N, the accelerators of a host that the run takes (with --cpu: the ranks)"
        problems.append(Problem(what="nobody says how many ranks a host gets", where=f"{SECTION}.slots_per_node", fix=fix))
    return problems


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


def _argument(text: str) -> Problem | None:
    name = text.removeprefix("--").partition("=")[0]
    # sbatch takes the beginning of an option's name for the whole.
    ours = next((own for own in _OURS if name and own.startswith(name)), None)
    if ours is None:
        return None
    return Problem(what=f"--{ours} is ftlaunch's own to set", where=f"{SECTION}.sbatch_args", fix=f"remove it; in its place there is {_OURS[ours]}")
