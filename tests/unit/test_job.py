"""One start of a Slurm job, up to the launch: whether it begins, how it launches, and what follows its end. The launch itself is in tests/slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.errors import PREEMPTED, ClusterError, FtError, Problem, SpecError
from ftcore.spec.run_dir import RunDir
from launcher.attempts import Manner
from launcher.events_file import read_events
from launcher.failure import RunFailedError
from launcher.preflight.finding import UnfitHostsError
from launcher.run_folder import write_files
from launcher.spec_source import Options
from launcher.submission.job import Start, run_start
from launcher.submission.record import note_requeue, read_submission, requeues, submission_path, submission_text
from tests.unit.test_submit import SPEC, program, submitted

LOST = RunFailedError("host n1 was lost: exit status 3\n    no sign of life for 5 s", 3, is_infrastructure=True)


class NoSignals:
    """A job that no signal comes to."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.ends_preparation = False

    def ignore(self) -> None:
        """There is none."""


def unfit(*checks: str) -> UnfitHostsError:
    return UnfitHostsError(tuple(Problem(what=f"n1: {check} is wrong", where=f"preflight, {check}") for check in checks), {"n1"})


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A submitted run of two nodes, job 7, with commands of Slurm that write down what they are asked."""
    program(tmp_path / "bin", "sbatch", "print(7)")
    calls = tmp_path / "calls"
    program(tmp_path / "bin", "scancel", f"open({str(calls)!r}, 'a').write('scancel ' + ' '.join(sys.argv[1:]) + chr(10))")
    told = "JobId=7 JobState=RUNNING Reason=None Restarts=0"
    program(tmp_path / "bin", "scontrol", f"open({str(calls)!r}, 'a').write('scontrol ' + ' '.join(sys.argv[1:3]) + chr(10)); print({told!r})")
    calls.touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC + "cluster: {scheduler: {max_requeues: 1}}\n")
    (made,) = submitted(spec, tmp_path / "run")
    return made


def start(run_dir: RunDir, restarts: int = 0) -> Start:
    return Start(run_dir=run_dir, job="7", nodes="n[1-2]", restarts=restarts)


def ends_by(error: FtError | None, manners: list[Manner]) -> Callable[[RunDir, Options, Manner], None]:
    def launch(run_dir: RunDir, options: Options, manner: Manner) -> None:
        manners.append(manner)
        if error is not None:
            raise error

    return launch


def calls(run_dir: RunDir) -> str:
    return (run_dir.path.parent / "calls").read_text()


# H07: a node failed, and Slurm started the script anew: its count goes on, though this run asked for nothing.
def test_a_requeue_by_slurm_is_noted_once(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.submission.job.start_again", ends_by(None, []))
    for restarts in (0, 1, 1):
        assert run_start(start(run_dir, restarts), NoSignals()) == 0
    assert [(event["restart"], event["by"]) for event in requeues(run_dir, "7")] == [(0, "slurm")]


def test_a_requeue_that_was_asked_for_is_not_slurms(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.submission.job.start_again", ends_by(None, []))
    note_requeue(run_dir, job="7", restart=0, reason="preempted", delay_s=1.0, by="ftlaunch")
    assert run_start(start(run_dir, 1), NoSignals()) == 0
    assert [event["by"] for event in requeues(run_dir, "7")] == ["ftlaunch"]


# H08: at most N requeues, whoever asked for them.
def test_a_job_that_was_put_back_too_often_does_not_train(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    manners: list[Manner] = []
    monkeypatch.setattr("launcher.submission.job.start_again", ends_by(None, manners))
    write_files({submission_path(run_dir): submission_text(replace(read_submission(run_dir), jobs=("7", "8", "9")))})
    assert run_start(start(run_dir, 2), NoSignals()) == PREEMPTED
    told = capsys.readouterr().out
    assert manners == [] and calls(run_dir) == "scancel --quiet 8 9\n"
    assert "put back 2 times already (cluster.scheduler.max_requeues 1)" in told and "ftlaunch submit --resume" in told
    (spent,) = read_events(run_dir, "requeues_spent")
    assert (spent["job"], spent["restart"]) == ("7", 2) and [event["by"] for event in requeues(run_dir, "7")] == ["slurm"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LOST, "host n1 was lost: exit status 3"),
        (unfit("reach"), "preflight, reach: n1: reach is wrong"),
        (unfit("reach", "connection"), "preflight, reach: n1: reach is wrong"),
    ],
)
def test_a_machines_failure_goes_back_with_its_own_words(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, error: FtError, reason: str) -> None:
    monkeypatch.setattr("launcher.submission.job.start_again", ends_by(error, []))
    assert run_start(start(run_dir), NoSignals()) == 3
    (event,) = requeues(run_dir, "7")
    assert (event["reason"], event["by"]) == (reason, "ftlaunch") and "scontrol requeue 7\n" in calls(run_dir)


# H08: what would be found again is not tried again.
@pytest.mark.parametrize(
    "error",
    [
        *(unfit(check) for check in ("interface", "python", "code", "versions", "slots", "shared", "connection")),
        unfit("reach", "python"),
        ClusterError("no list of nodes", where="SLURM_JOB_NODELIST"),
        RunFailedError("rank 0 on n1 failed: exit status 1", 1),
        SpecError("no such key"),
    ],
)
def test_a_mistake_does_not_go_back(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, error: FtError) -> None:
    monkeypatch.setattr("launcher.submission.job.start_again", ends_by(error, []))
    assert run_start(start(run_dir), NoSignals()) == error.exit_status
    assert requeues(run_dir, "7") == [] and "requeue" not in calls(run_dir)


def test_the_launch_in_a_job_says_how_jobs_go_on(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    manners: list[Manner] = []
    monkeypatch.setattr("launcher.submission.job.start_again", ends_by(None, manners))
    run_start(start(run_dir), NoSignals())
    (manner,) = manners
    assert manner.advice.startswith(f"ftlaunch submit --resume {run_dir.path}") and "back into the queue by itself" in manner.advice
