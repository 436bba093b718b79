"""The text of job.sbatch, and that bash and sbatch's rules read it as it is meant."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import SpecError
from launcher.submission.job_script import JobContext, check_folder, job_name, render_job_script, sbatch_quote

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "job_script"
SMALL = SchedulerSection(nodes=2, slots_per_node=4, time="2h")
FULL = SchedulerSection(
    nodes=16,
    slots_per_node=8,
    time="1-12:00:00",
    partition="gpu,big",
    account="proj@lab",
    qos="high",
    constraint="[rack1|rack2]&ib",
    sbatch_args=("--exclusive", "--mem=0", "--exclude=node[1-2,7]"),
    signal="TERM",
    signal_lead=300,
)


def context(scheduler: SchedulerSection, *, run_dir: str = "/runs/a b", on_cpu: bool = False) -> JobContext:
    return JobContext(
        run_dir=Path(run_dir), launch_dir=Path("/home/me/it's"), python="/venv/bin/python", import_root="/src", scheduler=scheduler, on_cpu=on_cpu
    )


CASES = {
    "small": context(SMALL),
    "full": replace(context(FULL), import_root=""),
    "cpu": context(SMALL, on_cpu=True),
    "no_requeues": context(replace(SMALL, max_requeues=0)),
    "own_resources": context(replace(SMALL, time="", sbatch_args=("--gres=gpu:a100:4",))),
}


# H04: the warning signal is USR2 where nobody says otherwise, and goes to the job's own process.
@pytest.mark.parametrize("name", CASES)
def test_golden_scripts(name: str) -> None:
    assert render_job_script(CASES[name]) == (GOLDEN / f"{name}.sbatch").read_text()


def test_bash_runs_python_in_its_own_place(tmp_path: Path) -> None:
    odd = tmp_path / "a $HOME `x` 'q' \"d\" ; %j é"
    odd.mkdir()
    shows = odd / "python"
    shows.write_text('#!/bin/bash\ntrap\necho "$$"; pwd\nprintf "%s|" "$PYTHONPATH" "$PYTHONSAFEPATH" "$DS_ACCELERATOR" "$@"\n')
    shows.chmod(0o755)
    text = render_job_script(JobContext(run_dir=odd, launch_dir=odd, python=str(shows), import_root=str(odd), scheduler=SMALL, on_cpu=True))
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    # Called as Slurm does: as a program. What it becomes has its process number, so a signal to the one reaches the other.
    script.chmod(0o755)
    started = subprocess.Popen([str(script)], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/x"}, stdout=subprocess.PIPE, text=True)
    shown, _ = started.communicate(timeout=60)
    arguments = ["-m", "launcher.slurm_job", str(odd)]
    ignored, _, rest = shown.partition(f"{started.pid}\n")
    # Beside what whoever started the tests ignores.
    assert "trap -- '' SIGUSR2" in ignored.splitlines()
    assert rest == f"{odd}\n" + "".join(f"{part}|" for part in [f"{odd}:/x", "1", "cpu", *arguments])


@pytest.mark.parametrize("value", ["plain", "a b", "it's", 'say "hi"', "a#b", "$HOME`x`", "back\\slash", "both ' and \" # \\ x"])
def test_options_are_quoted_for_sbatch(value: str) -> None:
    # sbatch joins quoted parts like a shell, but a backslash escapes within any quotes (seen with 22.05): so it stands there twice.
    assert shlex.split(sbatch_quote(value)) == [value.replace("\\", "\\\\")]


@pytest.mark.parametrize("folder", ["/runs/a\nb", "/runs/a\\b", "/runs/\x1b"])
def test_folders_that_slurm_could_not_write_to(folder: str) -> None:
    with pytest.raises(SpecError, match="which Slurm can't have"):
        check_folder(Path(folder))


def test_folders_that_it_can(tmp_path: Path) -> None:
    check_folder(tmp_path / "a b 'c' %j é")
    assert "--output=/runs/100%%/logs/slurm-%j.out\n" in render_job_script(context(SMALL, run_dir="/runs/100%"))


@pytest.mark.parametrize(("folder", "name"), [("/runs/a b", "ft-a-b"), ("/runs/lr=1e-5_r=8", "ft-lr=1e-5_r=8"), ("/runs/$(x)\n", "ft-x"), ("/", "ft-run")])
def test_job_names_are_plain(folder: str, name: str) -> None:
    assert job_name(Path(folder)) == name
