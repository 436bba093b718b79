"""The text of RUN/job.sbatch. A pure function of what is known when the run is submitted; it holds no secrets."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import SpecError
from launcher.slurm_time import parse_slurm_time, render_slurm_time
from launcher.submission.scheduler_rules import asks_for

JOB_MODULE = "launcher.slurm_job"
BY_HAND = "# Written by ftlaunch. A job submitted by hand is unknown to `ftlaunch status` and `cancel`, and takes all variables of its shell along.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What a job script depends on."""

    run_dir: Path
    """Absolute."""
    launch_dir: Path
    """The folder that ftlaunch was called in, absolute."""
    python: str
    """The interpreter that runs ftlaunch, absolute."""
    import_root: str
    """Added to PYTHONPATH; empty when ftlaunch is installed as a package."""
    scheduler: SchedulerSection
    """Checked, with nodes and slots_per_node."""
    on_cpu: bool
    """Whether slots are CPU ranks: no accelerator is asked for."""


def render_job_script(context: JobContext) -> str:
    """A script for `sbatch`. The run's folder is one that `check_folder` takes."""
    scheduler = context.scheduler
    options = [
        f"--job-name={job_name(context.run_dir)}",
        f"--nodes={scheduler.nodes}",
        # The launcher starts a supervisor on each node; that one starts the ranks.
        "--ntasks-per-node=1",
        *_resources(context),
        *((f"--time={render_slurm_time(parse_slurm_time(scheduler.time))}",) if scheduler.time else ()),
        *(f"--{name}={value}" for name in ("partition", "account", "qos", "constraint") if (value := getattr(scheduler, name))),
        f"--signal=B:{scheduler.signal}@{scheduler.signal_lead}",
        # Many sites put jobs back where neither is said.
        "--requeue" if scheduler.max_requeues else "--no-requeue",
        "--open-mode=append",
        # Slurm would look for its `%j` in the folder's name as well.
        f"--output={str(context.run_dir).replace('%', '%%')}/logs/slurm-%j.out",
        *scheduler.sbatch_args,
    ]
    root = shlex.quote(context.import_root)
    pythonpath = f'export PYTHONPATH={root}"${{PYTHONPATH:+:$PYTHONPATH}}"\n' if context.import_root else ""
    return (
        "#!/bin/bash\n" + "".join(f"#SBATCH {sbatch_quote(option)}\n" for option in options) + f"{BY_HAND}"
        # Python takes the signal as soon as it runs; before that it must not end the job.
        f"trap '' {scheduler.signal}\n"
        f"cd {shlex.quote(str(context.launch_dir))} || exit 3\n"
        f"{pythonpath}"
        # Modules in the folder that ftlaunch was called in must not stand in for the real ones.
        "export PYTHONSAFEPATH=1\n"
        + ("export DS_ACCELERATOR=cpu\n" if context.on_cpu else "")
        # The signal goes to the script's own process, which a shell would keep for itself.
        + f"exec {shlex.quote(context.python)} -m {JOB_MODULE} {shlex.quote(str(context.run_dir))}\n"
    )


def check_folder(run_dir: Path) -> None:
    """Raises SpecError when Slurm could not name a log in this folder: it reads a backslash in its own way, and options end with their line."""
    odd = sorted({letter for letter in str(run_dir) if letter == "\\" or ord(letter) < ord(" ")})
    if odd:
        letters = ", ".join(ascii(letter) for letter in odd)
        raise SpecError(f"{str(run_dir)!a} holds {letters}, which Slurm can't have in a log's name", where="-o", fix="choose a folder without it")


def sbatch_quote(option: str) -> str:
    """An option as sbatch reads it in a script: quoted like a shell's word, but with a backslash taken for an escape everywhere."""
    return shlex.quote(option.replace("\\", "\\\\"))


def job_name(run_dir: Path) -> str:
    """The job's name: the folder's, as far as Slurm's commands show it well."""
    return "ft-" + (re.sub(r"[^A-Za-z0-9_.=-]+", "-", run_dir.name).strip("-") or "run")[:60]


def _resources(context: JobContext) -> tuple[str, ...]:
    slots = context.scheduler.slots_per_node
    if context.on_cpu:
        chosen = asks_for(context.scheduler, "cpus-per-task", "exclusive", "overcommit")
        return () if chosen else (f"--cpus-per-task={slots}",)
    return () if asks_for(context.scheduler, "gres", "gpus-per-task") else (f"--gpus-per-node={slots}",)
