"""`ftlaunch submit` up to the point where it calls sbatch: what is resolved, rendered and refused."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import ClusterError, SpecError
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from launcher.hostfile import read_hostfile
from launcher.spec_source import Options
from launcher.submission.record import read_submission, requeues
from launcher.submission.request import Asked, resolve_runs
from launcher.submission.scheduler_rules import submission_warnings
from launcher.submission.slurm import JobState, ask_jobs, sbatch_environment, show_job
from launcher.submission.submitting import How, passed_variables, submit_again, submit_new
from tests.unit.test_cli import ftlaunch

SPEC = "model: {model_name_or_path: 'builtin:tiny-llama'}\ndata: {train: {path: 'builtin:extraction/train'}}\n"
SCHEMAS = Path(__file__).resolve().parents[1] / "cases" / "schemas"
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


def test_a_controller_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "scontrol", f"open({str(tmp_path / 'tries')!r}, 'a').write('x'); sys.exit('Unable to contact slurm controller')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("launcher.submission.slurm.PAUSES_S", (0.0, 0.0))
    with pytest.raises(ClusterError, match="Unable to contact slurm controller"):
        show_job("7")
    assert (tmp_path / "tries").read_text() == "xxx"


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


MANIFEST = ("submit", "spec.yaml", "--nodes", "2", "--slots-per-node", "8", "--dry-run", "--image", "ghcr.io/me/ft:1", "--volume", "runs", "-o", "runs/a")


def test_manifests_need_their_options(tmp_path: Path, spec: Path) -> None:
    ended = ftlaunch(tmp_path, "submit", "spec.yaml", "--slots-per-node", "1", "--dry-run", "--to", "sky", "--image", "a b", "-o", "/abs")
    assert ended.returncode == 2 and all(f"{option}: " in ended.stderr for option in ("--image", "--volume", "-o", "--accelerator"))


NOT_MAPPED = {"--partition": "p", "--account": "a", "--qos": "q", "--constraint": "c", "--sbatch-arg": "--mem=0", "--array": "lr=1e-5", "--chain": "2"}


@pytest.mark.parametrize(("engine", "more"), [("k8s", {"--accelerator": "H100"}), ("sky", {"--time": "2h", "--accelerator": "H100"})])
def test_what_a_manifest_can_not_say_is_refused_all_at_once(tmp_path: Path, spec: Path, engine: str, more: dict[str, str]) -> None:
    options = {**NOT_MAPPED, **more}
    given = [word for item in options.items() for word in item]
    ended = ftlaunch(tmp_path, *MANIFEST, "--to", engine, "--cpu", *given, COLUMNS="1000")
    assert ended.returncode == 2 and f"a manifest for {engine} has no place for" in ended.stderr and ended.stdout == ""
    assert all(name in ended.stderr for name in options)


# The hosts' keys are new to ssh, which may not ask: both engines' scripts say so to it, and hand the options on.
@pytest.mark.parametrize("engine", ["k8s", "sky"])
def test_the_script_of_a_manifest_passes_options_on(tmp_path: Path, spec: Path, engine: str) -> None:
    manifest = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", engine, "--cpu", "--no-export").stdout)
    text = manifest["run"] if engine == "sky" else manifest["spec"]["trainer"]["command"][2]
    text = text.replace("/tmp/", f"{tmp_path}/").replace("=/ftlaunch/", f"={tmp_path}/")
    program(tmp_path / "bin", "ftlaunch", "print(os.environ['FTLAUNCH_SSH_ARGS']); print('|'.join(sys.argv[1:]))")
    env = {"FTLAUNCH_SPEC": "", "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": "/root", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
    for begins in (True, False):
        ssh, arguments = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True).stdout.splitlines()
        assert "-oStrictHostKeyChecking=accept-new" in shlex.split(ssh)
        assert arguments.startswith("--spec|" if begins else "--resume|") and "--no-export" in arguments.split("|")
        (tmp_path / "runs" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "a" / "resolved.json").touch()


@pytest.mark.parametrize(
    ("engine", "schema", "more"),
    [("k8s", "trainjob", []), ("k8s", "trainjob", ["--cpu"]), ("sky", "sky_task", ["--accelerator", "H100"]), ("sky", "sky_task", ["--cpu"])],
)
def test_manifests_fit_the_published_schemas(tmp_path: Path, spec: Path, engine: str, schema: str, more: list[str]) -> None:
    ended = ftlaunch(tmp_path, *MANIFEST, "--to", engine, *more)
    assert ended.returncode == 0, ended.stderr
    rules = json.loads((SCHEMAS / f"{schema}.json").read_text())
    jsonschema.validate(yaml.safe_load(ended.stdout), rules)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(ended.stdout), "nodes": 2}, rules)


def test_the_script_of_a_manifest_begins_or_goes_on(tmp_path: Path, spec: Path) -> None:
    """The shell text itself, run with an ftlaunch that shows what it was given."""
    task = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", "sky", "--cpu").stdout)
    text = task["run"].replace("/tmp/", f"{tmp_path}/").replace("=/ftlaunch/", f"={tmp_path}/")
    program(tmp_path / "bin", "ftlaunch", "print('|'.join(sys.argv[1:]))")
    env = {**task["envs"], "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": "/root", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    shell = ["bash", "-c", text]
    begun = subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout
    assert begun == f"--spec|{tmp_path}/ftlaunch-spec.yaml|-o|{tmp_path}/runs/a|--hosts|{tmp_path}/ftlaunch-hostfile\n"
    assert (tmp_path / "ftlaunch-spec.yaml").read_text() == SPEC
    assert [host.name for host in read_hostfile(tmp_path / "ftlaunch-hostfile")] == ["10.0.0.1", "10.0.0.2"]
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "resolved.json").touch()
    assert subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout.startswith(f"--resume|{tmp_path}/runs/a|--hosts|")
    assert subprocess.run(shell, env={**env, "SKYPILOT_NODE_RANK": "1"}, capture_output=True, text=True, check=True).stdout == ""


def test_the_manifests_say_the_same(tmp_path: Path, spec: Path) -> None:
    job = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", "k8s", "--set", "train.seed=7", "--time", "2h").stdout)
    task = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", "sky", "--accelerator", "H100", "--set", "train.seed=7").stdout)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["resourcesPerNode"]["limits"]) == (2, 8, {"nvidia.com/gpu": "8"})
    assert job["spec"]["activeDeadlineSeconds"] == 7200 and job["metadata"]["name"] == "ft-runs-a"
    assert (task["num_nodes"], task["resources"]["accelerators"], task["volumes"]) == (2, "H100:8", {"/ftlaunch": "runs"})
    assert "--set train.seed=7" in trainer["command"][2] and "--set train.seed=7" in task["run"]
    assert {variable["name"]: variable["value"] for variable in trainer["env"]} == task["envs"]
    assert json.dumps(job).count("claimName") == 2
