"""`ftlaunch submit` up to the point where it calls sbatch: what is resolved, rendered and refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import ClusterError, SpecError
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from launcher.spec_source import Options
from launcher.submission.record import read_submission, requeues
from launcher.submission.request import Asked, resolve_runs
from launcher.submission.scheduler_rules import submission_warnings
from launcher.submission.slurm import JobState, ask_jobs, sbatch_environment, show_job
from launcher.submission.submitting import How, passed_variables, submit_again, submit_new
from tests.unit.test_cli import ftlaunch

SPEC = "model: {model_name_or_path: 'builtin:tiny-llama'}\ndata: {train: {path: 'builtin:extraction/train'}}\n"
HOW = How(on_cpu=True, chain=1, env_file=None, exports=True)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def program(folder: Path, name: str, body: str) -> None:
    """A program called `name` on a PATH of its own: one of Slurm's that answers as a site's own wrapper might."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_dry_run_prints_the_script_and_makes_nothing(tmp_path: Path, spec: Path) -> None:
    ended = ftlaunch(tmp_path, "submit", "spec.yaml", "--nodes", "2", "--slots-per-node", "4", "--time", "2h", "-p", "gpu", "--dry-run", "-o", "a")
    assert ended.returncode == 0 and ended.stdout.startswith("#!/bin/bash\n")
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4", "#SBATCH --time=02:00:00", "#SBATCH --partition=gpu"} <= set(ended.stdout.splitlines())
    assert {path.name for path in tmp_path.iterdir()} == {"spec.yaml"}


def test_values_are_set_as_for_launch(tmp_path: Path, spec: Path) -> None:
    arguments = ("submit", "--spec", "spec.yaml", "optimizer.learning_rate=0.5", "--slots-per-node", "1", "--set", "train.seed=7", "--dry-run", "-o", "a")
    for asked in (arguments, (*arguments, "--to", "k8s", "--image", "a/b:1", "--volume", "v")):
        ended = ftlaunch(tmp_path, *asked)
        assert ended.returncode == 0, ended.stderr
    assert "train.seed=7" in ended.stdout and "optimizer.learning_rate=0.5" in ended.stdout
    ended = ftlaunch(tmp_path, "submit", "spec.yaml", "optimizer.learning_rat=1", "--slots-per-node", "1", "--dry-run")
    assert ended.returncode == 2 and "optimizer.learning_rat" in ended.stderr
    ended = ftlaunch(tmp_path, "submit", "spec.yaml", "other.yaml", "--dry-run")
    assert ended.returncode == 2 and "one SPEC is submitted at a time, 2 were given: spec.yaml, other.yaml" in ended.stderr
    ended = ftlaunch(tmp_path, "submit", "--resume", "a", "train.seed=7")
    assert ended.returncode == 2 and "KEY=VALUE can't stand beside it" in ended.stderr


def test_a_dry_run_tells_what_would_be_refused(tmp_path: Path, spec: Path) -> None:
    for target in ([], ["--to", "k8s", "--image", "a/b:1", "--volume", "v", "-o", "a"]):
        arguments = ("submit", "spec.yaml", "--nodes", "1", "--slots-per-node", "2", "--set", "hardware.accelerator=t4:0.6", *target)
        ended = ftlaunch(tmp_path, *arguments, "--dry-run")
        assert ended.returncode == 0 and "does not fit: a rank takes" in ended.stderr


def test_cpu_ranks_ask_for_no_accelerator(tmp_path: Path, spec: Path) -> None:
    for arguments, more in ((["--cpu"], {}), ([], {"DS_ACCELERATOR": "cpu"})):
        text = ftlaunch(tmp_path, "submit", "spec.yaml", "--slots-per-node", "4", "--dry-run", *arguments, **more).stdout
        assert "--gpus" not in text and "#SBATCH --cpus-per-task=4" in text and "export DS_ACCELERATOR=cpu" in text


def test_every_mistake_at_once(spec: Path) -> None:
    asked = Asked(nodes=0, time="3600.0", partition="a b", sbatch_args=("--output=x", "--gpus-per-n=3", "-x"))
    with pytest.raises(SpecError) as caught:
        resolve_runs(Options(spec_path=spec, sets=("optimizer.learning_rate=-1",)), asked, ())
    told = {(problem.file, problem.where) for problem in caught.value.problems}
    scheduler = "cluster.scheduler"
    assert {("--nodes", f"{scheduler}.nodes"), ("--time", f"{scheduler}.time"), ("--partition", f"{scheduler}.partition")} <= told
    assert {("--sbatch-arg", f"{scheduler}.sbatch_args"), ("--set", "optimizer.learning_rate")} <= told


def test_nobody_says_how_many_ranks(spec: Path) -> None:
    with pytest.raises(SpecError, match="nobody says how many ranks a host gets"):
        resolve_runs(Options(spec_path=spec), Asked(), ())
    with pytest.raises(SpecError, match="can't read the spec") as caught:
        resolve_runs(Options(spec_path=spec.with_name("none.yaml")), Asked(), ())
    assert len(caught.value.problems) == 1


def test_what_the_spec_says_and_what_stands_over_it(spec: Path) -> None:
    spec.write_text(SPEC + "cluster:\n  slots: 3\n  scheduler: {nodes: 2, partition: '17', time: 90m}\n")
    (run,) = resolve_runs(Options(spec_path=spec), Asked(partition="18"), ())
    assert (run.scheduler.nodes, run.scheduler.slots_per_node, run.scheduler.partition, run.scheduler.time) == (2, 3, "18", "90m")
    assert run.resolution.resolved.world_size == 6


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--slots-per-node", "-4"], ["--slots-per-node: cluster.scheduler.slots_per_node: number -4 is out of range"]),
        (["--slots-per-node", "1", "--array", "lora=1,2"], ["--array: lora: unknown key `lora`"]),
        (["--slots-per-node", "1", "--array", "zzz=1", "--set", "yyy=1"], ["--set: yyy: unknown key `yyy`", "--array: zzz: unknown key `zzz`"]),
        (
            ["--slots-per-node", "1", "--array", "lr=1", "--set", "optimizer.learning_rate=2"],
            ["--set: optimizer.learning_rate: `optimizer.learning_rate` is set by --set twice"],
        ),
        (["--slots-per-node", "1", "--sbatch-arg=--gpus=8"], ["--sbatch-arg: cluster.scheduler.sbatch_args: --gpus is ftlaunch's own to set"]),
    ],
)
def test_each_mistake_once_and_by_its_option(tmp_path: Path, spec: Path, arguments: list[str], told: list[str]) -> None:
    ended = ftlaunch(tmp_path, "submit", "spec.yaml", "--dry-run", *arguments)
    lines = [text for line in ended.stderr.splitlines() if (text := line.removeprefix("ftlaunch: ")).startswith("--")]
    assert ended.returncode == 2 and lines == told


def test_mistakes_of_an_array_are_told_once(spec: Path) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_runs(Options(spec_path=spec, sets=("model.modl=1",)), Asked(slots_per_node=1), ("lr=1e-4,-1,-2",))
    assert sorted(problem.where for problem in caught.value.problems) == ["model.modl", "optimizer.learning_rate", "optimizer.learning_rate"]


# Whatever text an option holds, it is refused or stays one value: no second option and no second line comes of it.
@given(text=st.text(max_size=30))
def test_no_option_is_smuggled_in(text: str) -> None:
    options = Options(sets=("train.max_steps=1",))
    for asked in (Asked(slots_per_node=1, partition=text or None), Asked(slots_per_node=1, sbatch_args=(f"--comment={text}",))):
        try:
            (run,) = resolve_runs(options, asked, ())
        except SpecError:
            continue
        value = run.scheduler.partition or "".join(run.scheduler.sbatch_args)
        assert value.isprintable() and " " not in value and not value.removeprefix("--").startswith("-")


@pytest.mark.parametrize(("time", "count"), [("", 0), ("UNLIMITED", 0), ("4m", 0), ("239s", 1)])
def test_a_warning_that_comes_early(time: str, count: int) -> None:
    assert len(submission_warnings(SchedulerSection(time=time, signal_lead=120))) == count


def test_which_variables_reach_a_job() -> None:
    shell = {"HOME": "/h", "PATH": "/p", "HF_HOME": "/hf", "HF_TOKEN": "x", "EDITOR": "vi", "MINE_A": "1", "SLURM_JOB_ID": "7", "RANK": "3"}
    passed = passed_variables(shell, ("MINE_*",))
    assert passed.names == ("HF_HOME", "HOME", "MINE_A", "PATH") and passed.withheld == ("HF_TOKEN",)


def test_what_sbatch_itself_sees() -> None:
    shell = {
        "PATH": "/p",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_ACCOUNT": "a",
        "SBATCH_PARTITION": "p",
        "SLURM_RESTART_COUNT": "9",
        "SLURM_CONF": "/c",
        "HF_HOME": "/hf",
    }
    assert sbatch_environment(shell, ("HF_HOME",), {"account": "", "partition": "mine"}) == {
        "PATH": "/p",
        "SBATCH_ACCOUNT": "a",
        "SLURM_CONF": "/c",
        "HF_HOME": "/hf",
    }


def submitted(spec: Path, output: Path, how: How = HOW, arrays: tuple[str, ...] = ()) -> list[RunDir]:
    runs = resolve_runs(Options(spec_path=spec), Asked(nodes=2, slots_per_node=2, time="1h"), arrays)
    return [run_dir for run_dir, _ in submit_new(runs, output, how)]


def test_what_a_submission_leaves(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "sbatch", "print('41;big'); print(sys.argv[1:], file=open('seen', 'w'))")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (run_dir,) = submitted(spec, tmp_path / "run")
    record, resolved = read_submission(run_dir), load_resolved(run_dir.resolved)
    assert (record.jobs, record.cluster, record.scheduler.nodes) == (("41",), "big", 2)
    assert resolved.spec.cluster.hosts == str(run_dir.path / "slurm_hosts") and resolved.sources["cluster.hosts"] == "ftlaunch submit"
    assert [host.name for host in resolved.hosts] == ["slurm-node-0", "slurm-node-1"]
    assert (run_dir.path / "logs").is_dir() and run_dir.spec.read_text() == SPEC
    assert (run_dir.path / "seen").read_text().startswith("['--parsable', '--export=")
    assert requeues(run_dir, "41") == []


def test_a_chain_waits_for_the_job_before(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "n = len(os.listdir('.')); open(f'call{n}', 'w').write(' '.join(sys.argv)); print(n)"
    program(tmp_path / "bin", "sbatch", body)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (run_dir,) = submitted(spec, tmp_path / "run", How(on_cpu=True, chain=3, env_file=None, exports=True))
    first, second, _ = read_submission(run_dir).jobs
    calls = [path.read_text() for path in sorted(run_dir.path.glob("call*"), key=lambda path: int(path.name[4:]))]
    assert [call.count("--dependency") for call in calls] == [0, 1, 1]
    assert f"--dependency=afterany:{first} " in calls[1] and f"--dependency=afterany:{second} " in calls[2]


def test_all_of_an_array_is_queued_or_none(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "sbatch", "sys.exit('sbatch: error: QOSMaxSubmitJobPerUserLimit') if '2e' in os.getcwd() else print(7)")
    program(tmp_path / "bin", "scancel", f"open({str(tmp_path / 'cancelled')!r}, 'a').write(' '.join(sys.argv[1:]))")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ClusterError, match="QOSMaxSubmitJobPerUserLimit"):
        submitted(spec, tmp_path / "sweep", arrays=("lr=1e-5,2e-5",))
    assert (tmp_path / "cancelled").read_text() == "--quiet 7" and not (tmp_path / "sweep").exists()


def test_a_machine_without_slurm(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="can't start sbatch"):
        submitted(spec, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_jobs_that_are_there_are_not_queued_twice(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "sbatch", "print(7)")
    program(tmp_path / "bin", "squeue", "print('7|PENDING|Priority|')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (run_dir,) = submitted(spec, tmp_path / "run")
    with pytest.raises(ClusterError, match=r"there already: 7 \(PENDING\)"):
        submit_again(run_dir, Asked(), HOW)
    program(tmp_path / "bin", "squeue", "print('7|FAILED||n1')")
    assert submit_again(run_dir, Asked(nodes=3), HOW).scheduler.nodes == 3
    with pytest.raises(SpecError, match="--time"):
        submit_again(run_dir, Asked(time="x"), HOW)


def test_answers_of_squeue_and_sacct(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "sbatch", "print(7)")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    record = read_submission(submitted(spec, tmp_path / "run")[0])
    program(tmp_path / "bin", "squeue", "sys.exit('slurm_load_jobs error: Invalid job id specified')")
    assert ask_jobs(record) == [JobState(job="7", state="GONE")]
    program(tmp_path / "bin", "sacct", "print('7|TIMEOUT|n1'); print('7|CANCELLED by 1000|n[1-2]')")
    assert ask_jobs(record) == [JobState(job="7", state="CANCELLED", nodes="n[1-2]")]
    program(tmp_path / "bin", "scontrol", "print('JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=2 NodeList=n1')")
    assert show_job("7") == JobState(job="7", state="COMPLETING", reason="TimeLimit", nodes="n1", restarts=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "k8s"], "add --dry-run"),
        (["--to", "sky", "--dry-run", "--chain", "2"], "a manifest for sky has no place for --chain"),
        (["--resume", "r", "--zero", "1"], "--zero can't stand beside it"),
        (["--resume", "r", "--dry-run"], "--dry-run can't stand beside it"),
    ],
)
def test_usage(tmp_path: Path, spec: Path, arguments: list[str], told: str) -> None:
    ended = ftlaunch(tmp_path, "submit", *arguments)
    assert ended.returncode == 2 and told in ended.stderr.replace("\n", " ")


def test_a_job_script_by_hand_says_what_is_missing(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "launcher.slurm_job", str(tmp_path)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    ended = subprocess.run(argv, env=kept, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3 and "this is not a Slurm job" in ended.stderr
    ended = subprocess.run(argv, env={**kept, "SLURM_JOB_ID": "1"}, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 5 and "holds no resolved.json" in ended.stderr
