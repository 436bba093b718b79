"""`ftlaunch submit` under a real Slurm: two nodes, preemption, requeues, chains, arrays, and what never goes back into the queue."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.slurm import ENDED, NODES, Slurm
from tests.slurm.runs import SLOW, UPDATES, Ftlaunch, events, losses, parameters_digest
from tests.unit.live_processes import wait_until


@pytest.fixture
def ftlaunch(slurm: Slurm, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Ftlaunch:
    return Ftlaunch(slurm, tmp_path, tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(scope="module")
def unbroken(running_slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two nodes that nothing disturbed."""
    ftlaunch = Ftlaunch(running_slurm, tmp_path_factory.mktemp("unbroken"), tmp_path_factory.getbasetemp() / "cache")
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1")
    assert running_slurm.wait_for(job) == "COMPLETED", ftlaunch.slurm_log(job)
    return ftlaunch.run_dir


def test_a_run_on_two_nodes(unbroken: Path) -> None:
    resolved = json.loads((unbroken / "resolved.json").read_text())
    assert [host["name"] for host in resolved["hosts"]] == list(NODES)
    assert len(losses(unbroken)) == UPDATES
    # The hosts of the first job were no change of the run.
    assert not list(unbroken.glob("*.attempt_*.json")) and "resumed" not in "".join(path.read_text() for path in unbroken.glob("logs/slurm-*.out"))
    assert {path.name for path in (unbroken / "logs" / "attempt_1").glob("rank_*.log")} == {"rank_0.log", "rank_1.log"}


# H04, H13: USR2 to the job's own process -> one save, 75, requeue; the next start goes on in the same folder, with logs of its own.
def test_preempted_by_a_signal_and_requeued(ftlaunch: Ftlaunch, slurm: Slurm, unbroken: Path) -> None:
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1", "--set", "cluster.scheduler.requeue_backoff=1")
    with ftlaunch.start("logs", "-f", "--all", "run") as follows:
        ftlaunch.wait_for_update(2)
        slurm.run("scancel", "--signal=USR2", "--batch", str(job))
        text, _ = follows.communicate(timeout=600)
    assert follows.returncode == 0 and slurm.state(job) == "COMPLETED", ftlaunch.slurm_log(job)
    # Every line is whole and says whose it is, but for the one that begins an attempt, and both attempts are there.
    lines = text.splitlines()
    assert all(" | " in line for line in lines if line != "--- attempt 2 ---") and lines.count("--- attempt 2 ---") == 1
    assert text.count(f"slurm {job} | starting 2 ranks") == 2
    assert {path.name for path in (ftlaunch.run_dir / "logs").glob("attempt_*")} == {"attempt_1", "attempt_2"}
    (requeued,) = events(ftlaunch.run_dir, "requeued")
    assert (requeued["reason"], requeued["restart"], requeued["by"]) == ("preempted", 0, "ftlaunch")
    assert "to go on: ftlaunch submit --resume" in ftlaunch.slurm_log(job) and "ftlaunch --resume" not in ftlaunch.slurm_log(job)
    assert losses(ftlaunch.run_dir) == losses(unbroken)
    assert parameters_digest(ftlaunch.run_dir) == parameters_digest(unbroken)
    status = ftlaunch.status()
    assert (status["state"], status["attempt"], status["requeues"]) == ("finished", 2, 1)


# H08: the time limit. Slurm warns 30 to 90 s before it, and looks at limits every 30 s.
def test_preempted_by_the_time_limit_and_requeued(ftlaunch: Ftlaunch, slurm: Slurm, unbroken: Path) -> None:
    (ftlaunch.folder / "sitecustomize.py").write_text(SLOW)
    ftlaunch.environment["PYTHONPATH"] += f":{ftlaunch.folder}"
    limits = ("--time", "2m", "--set", "cluster.scheduler.signal_lead=30", "--set", "cluster.scheduler.requeue_backoff=1")
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1", *limits)
    assert slurm.wait_for(job, seconds=800) == "COMPLETED", ftlaunch.slurm_log(job)
    assert int(slurm.shown(job)["Restarts"]) >= 1 and "preempted by SIGUSR2" in ftlaunch.slurm_log(job)
    assert losses(ftlaunch.run_dir) == losses(unbroken)
    assert parameters_digest(ftlaunch.run_dir) == parameters_digest(unbroken)


def test_a_chain_goes_on_and_ends_with_the_run(ftlaunch: Ftlaunch, slurm: Slurm, unbroken: Path) -> None:
    first, second, third = ftlaunch.submit_all("--nodes", "2", "--slots-per-node", "1", "--chain", "3")
    ftlaunch.wait_for_update(2)
    slurm.run("scancel", "--signal=USR2", "--batch", first)
    assert slurm.wait_for(second, seconds=600) == "COMPLETED", ftlaunch.slurm_log(second)
    assert (slurm.wait_for(first), slurm.wait_for(third)) == ("FAILED", "CANCELLED")
    assert f"job {second} of the chain goes on" in ftlaunch.slurm_log(first) and events(ftlaunch.run_dir, "requeued") == []
    assert parameters_digest(ftlaunch.run_dir) == parameters_digest(unbroken)
    assert ftlaunch.status()["state"] == "finished"


# H07: everything dies without a signal. Slurm starts the script anew, which finds its newest whole checkpoint in the same folder.
def test_a_lost_node(ftlaunch: Ftlaunch, slurm: Slurm, unbroken: Path) -> None:
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1")
    ftlaunch.wait_for_update(2)
    for node in NODES:
        slurm.kill_node(node)
    slurm.wait_for(job, {"PENDING"})
    # No machine comes back in the second in which it was lost: slurmd would take the new start of the job for the old one, and drop it.
    time.sleep(3)
    for node in NODES:
        slurm.start(node)
    assert slurm.wait_for(job, seconds=600) == "COMPLETED", ftlaunch.slurm_log(job)
    assert losses(ftlaunch.run_dir) == losses(unbroken)
    assert parameters_digest(ftlaunch.run_dir) == parameters_digest(unbroken)
    # Slurm may end the next start as well, when the nodes register again: that is one more, by whoever is first.
    assert next(event["by"] for event in events(ftlaunch.run_dir, "requeued")) == "slurm"


# H08
def test_a_permanent_error_ends_job_and_chain(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    rows = ftlaunch.folder / "rows.jsonl"
    rows.write_text("not json\n")
    jobs = ftlaunch.submit_all("--nodes", "1", "--slots-per-node", "1", "--chain", "3", "--set", f"data.train.path={rows}")
    assert slurm.wait_for(jobs[0]) == "FAILED"
    assert slurm.shown(jobs[0])["ExitCode"] == "4:0" and slurm.shown(jobs[0])["Restarts"] == "0"
    assert [slurm.wait_for(job) for job in jobs[1:]] == ["CANCELLED", "CANCELLED"]
    assert ftlaunch.status()["state"] == "failed"


def test_a_spec_error_is_told_before_anything_is_submitted(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    before = slurm.jobs()
    ended = ftlaunch.run(
        "submit", "spec.yaml", "-o", "run", "--slots-per-node", "1", "--time", "3600.0", "--set", "optimizer.learning_rate=-1", "--partition=a b"
    )
    assert ended.returncode == 2 and all(option in ended.stderr for option in ("--time", "--partition", "learning_rate"))
    assert slurm.jobs() == before and not ftlaunch.run_dir.exists()


def test_the_cap_on_requeues_holds(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    limits = ("--set", "cluster.scheduler.requeue_backoff=0", "--set", "cluster.scheduler.max_requeues=1")
    job = ftlaunch.submit("--nodes", "1", "--slots-per-node", "1", *limits, "--set", "train.max_steps=2000")
    for attempt in (1, 2):
        ftlaunch.wait_for_attempt(attempt)
        ftlaunch.wait_for_update(len(losses(ftlaunch.run_dir)) + 1)
        slurm.run("scancel", "--signal=USR2", "--batch", str(job))
        slurm.wait_for(job, {"PENDING", "COMPLETING", *ENDED})
    assert slurm.wait_for(job) == "FAILED"
    assert slurm.shown(job)["ExitCode"] == "75:0" and slurm.shown(job)["Restarts"] == "1"
    assert "max_requeues 1" in ftlaunch.slurm_log(job)
    # Slurm asks nobody when somebody puts it back by hand: then it begins, and trains nothing.
    trained = losses(ftlaunch.run_dir)
    slurm.run("scontrol", "requeue", str(job))
    wait_until(lambda: "put back 2 times already" in ftlaunch.slurm_log(job), 300)
    assert slurm.wait_for(job) == "FAILED" and slurm.shown(job)["ExitCode"] == "75:0" and slurm.shown(job)["Restarts"] == "2"
    assert losses(ftlaunch.run_dir) == trained and len(list(ftlaunch.run_dir.glob("logs/attempt_*"))) == 2
    assert [event["by"] for event in events(ftlaunch.run_dir, "requeued")] == ["ftlaunch", "slurm"]
    assert ftlaunch.status()["state"] == "preempted"


def test_cancel_leaves_nothing_and_the_run_can_go_on(ftlaunch: Ftlaunch, slurm: Slurm, unbroken: Path) -> None:
    jobs = ftlaunch.submit_all("--nodes", "2", "--slots-per-node", "1", "--chain", "2")
    ftlaunch.wait_for_update(2)
    assert ftlaunch.status()["state"] == "running"
    ended = ftlaunch.run("cancel", "run")
    assert ended.returncode == 0, ended.stderr
    assert [slurm.state(job) in ENDED for job in jobs] == [True, True]
    # A step's daemon tells Slurm of its end, and then ends.
    wait_until(lambda: not slurm.processes(), 60)
    assert ftlaunch.status()["state"] == "stopped" and events(ftlaunch.run_dir, "requeued") == []
    again = ftlaunch.run("submit", "--resume", "run")
    assert again.returncode == 0, again.stderr
    (job,) = ftlaunch.jobs()
    assert slurm.wait_for(job) == "COMPLETED", ftlaunch.slurm_log(job)
    assert losses(ftlaunch.run_dir) == losses(unbroken)


def test_cancel_with_a_save(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1", "--set", "checkpoint.save_steps=0", "--set", "train.max_steps=2000")
    ftlaunch.wait_for_update(2)
    ended = ftlaunch.run("cancel", "--save", "run")
    assert ended.returncode == 0, ended.stderr
    assert slurm.state(job) in ENDED and ftlaunch.status()["checkpoint_update"] >= 2 and events(ftlaunch.run_dir, "requeued") == []


def test_plain_scancel_does_not_come_back(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1", "--set", "train.max_steps=2000")
    ftlaunch.wait_for_update(2)
    slurm.run("scancel", str(job))
    assert slurm.wait_for(job) == "CANCELLED" and slurm.shown(job)["Restarts"] == "0"
    wait_until(lambda: not slurm.processes(), 60)
    assert ftlaunch.status()["state"] == "stopped"


def test_an_array_has_a_run_for_each_value(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    ended = ftlaunch.run("submit", "spec.yaml", "--cpu", "--slots-per-node", "1", "--array", "lr=1e-3,2e-3", "-o", "sweep", "--set", "train.max_steps=1")
    assert ended.returncode == 0, ended.stderr
    folders = [ftlaunch.folder / "sweep" / f"learning_rate={value}" for value in ("1e-3", "2e-3")]
    jobs = [json.loads((folder / "submission.json").read_text())["jobs"][0] for folder in folders]
    assert [slurm.wait_for(job) for job in jobs] == ["COMPLETED", "COMPLETED"]
    assert [json.loads((folder / "resolved.json").read_text())["spec"]["optimizer"]["learning_rate"] for folder in folders] == [1e-3, 2e-3]
    told = ftlaunch.run("status", "sweep").stdout.splitlines()
    assert len(told) == 2 and all("finished" in line for line in told)


def test_a_refused_job_leaves_no_folder(ftlaunch: Ftlaunch) -> None:
    ended = ftlaunch.run("submit", "spec.yaml", "--cpu", "--slots-per-node", "1", "-o", "run", "--partition", "nowhere")
    assert ended.returncode == 3 and "nvalid partition" in ended.stderr
    assert not ftlaunch.run_dir.exists()


# Values of the job's environment arrive byte-equal; a secret is neither in the run folder nor in a process's arguments nor in Slurm's state.
def test_values_and_secrets(ftlaunch: Ftlaunch, slurm: Slurm) -> None:
    odd, secret = 'a b\n\'$HOME\' "x" {"k": [1,2]}, é;`id`', "s3cr3t-of-the-shell"
    ftlaunch.environment |= {"HF_ODD": odd, "HF_TOKEN": secret}
    env_file = ftlaunch.folder / "env"
    env_file.write_text("MY_TOKEN=s3cr3t-of-the-file\n")
    shows = ftlaunch.folder / "sitecustomize.py"
    shows.write_text(
        "import json, os\nif 'RANK' in os.environ:\n    json.dump(dict(os.environ), open(os.path.join(os.environ['HF_SHOWS'], os.environ['RANK']), 'w'))\n"
    )
    shown = ftlaunch.folder / "shown"
    shown.mkdir()
    ftlaunch.environment |= {"PYTHONPATH": str(ftlaunch.folder), "HF_SHOWS": str(shown)}
    job = ftlaunch.submit("--nodes", "2", "--slots-per-node", "1", "--set", "train.max_steps=1", "--env-file", str(env_file), name="odd 'name' $HOME %j")
    assert slurm.wait_for(job) == "COMPLETED", ftlaunch.slurm_log(job)
    for rank in range(2):
        seen = json.loads((shown / str(rank)).read_text())
        assert seen["HF_ODD"] == odd and seen["MY_TOKEN"] == "s3cr3t-of-the-file" and "HF_TOKEN" not in seen
    places = [ftlaunch.run_dir, slurm.folder]
    found = subprocess.run(["grep", "-rlaE", "s3cr3t-of-the-(shell|file)", *map(str, places)], capture_output=True, text=True, check=False).stdout
    assert found == ""
