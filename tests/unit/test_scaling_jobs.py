"""Points as jobs: queued once, collected as they end, marked when they end badly. Slurm's answers are made up here; tests/slurm asks a real one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import DoesNotFitError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import ScaleDir
from launcher.scaling import jobs
from launcher.scaling.points import plan_points
from launcher.scaling.sweep import Sweep, recall
from launcher.submission.record import Submission, submission_path, submission_text
from launcher.submission.slurm import JobState
from tests.unit.scaled import here, machines, request, write_run


class Slurm:
    """What Slurm would say."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.submitted: list[str] = []

    def submit(self, runs: tuple[Any, ...], output: Path, how: Any) -> list[tuple[RunDir, Submission]]:
        job = str(100 + len(self.submitted))
        self.submitted.append(output.name)
        record = Submission(jobs=(job,), cluster="", scheduler=runs[0].scheduler, env_file="", exports=how.exports, on_cpu=how.on_cpu, time=0.0)
        output.mkdir(parents=True)
        submission_path(RunDir(output)).write_text(submission_text(record))
        self.states[job] = JobState(job=job, state="PENDING", reason="Resources")
        return [(RunDir(output), record)]

    def ask(self, submission: Submission) -> list[JobState]:
        return [self.states[job] for job in submission.jobs]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(jobs, "submit_new", made.submit)
    monkeypatch.setattr(jobs, "ask_jobs", made.ask)
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 0.0)
    return made


def sweep(folder: Path) -> Sweep:
    asked = request(scheduler=SchedulerSection(slots_per_node=2), on_cpu=True)
    made = Sweep(folder=ScaleDir(folder), request=asked, wanted=plan_points(asked, machines(), 1), variables={})
    recall(made, anew=False)
    return made


def end(folder: Path, ranks: int, *, status: int = 0, updates: int = 11) -> None:
    """The run of a point has ended."""
    path = folder / "points" / f"w{ranks}-zero2"
    write_run(path, [2.0 / ranks] * updates, [1000] * updates, ranks=ranks)
    (path / "checkpoints").mkdir()
    told = [{"event": "launch_started", "attempt": 1, "time": 1.0}, {"event": "launch_ended", "attempt": 1, "status": status, "reason": "the reason"}]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))


def test_jobs_are_queued_once_and_collected(tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    first = sweep(tmp_path)
    assert jobs.submit_points(first) == 2 and jobs.submit_points(first) == 0 and slurm.submitted == ["w1-zero2", "w2-zero2"]
    assert [point.state for point in jobs.collect_jobs(first)] == ["queued", "queued"]
    later = sweep(tmp_path)
    assert jobs.submit_points(later) == 0 and [point.job for point in later.result.points] == ["100", "101"]
    slurm.states["101"] = JobState(job="101", state="RUNNING")
    end(tmp_path, 1)
    assert [point.state for point in jobs.collect_jobs(later)] == ["running"]
    end(tmp_path, 2)
    jobs.wait_for_jobs(later)
    assert [point.speedup for point in later.result.points] == [1.0, 2.0] and later.result.agreement.passed
    assert not list(tmp_path.glob("points/*/checkpoints")) and "w2-zero2: job 101 runs" in capsys.readouterr().out


def test_a_job_of_another_spec_goes_on_and_says_so(tmp_path: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    first = sweep(tmp_path)
    jobs.submit_points(first)
    asked = dataclasses.replace(first.request, resolved=here(samples=8))
    later = Sweep(folder=first.folder, request=asked, wanted=plan_points(asked, machines(), 1), variables={})
    capsys.readouterr()
    recall(later)
    assert jobs.submit_points(later) == 0
    assert "1 rank in stage 2: job 100 goes on as it was queued: changed since: batch.global_batch_size (128 -> 8)" in capsys.readouterr().out


def test_jobs_that_end_badly(tmp_path: Path, slurm: Slurm) -> None:
    made = sweep(tmp_path)
    jobs.submit_points(made)
    slurm.states |= {"100": JobState(job="100", state="FAILED"), "101": JobState(job="101", state="CANCELLED", reason="by 1000")}
    end(tmp_path, 1, status=6)
    jobs.wait_for_jobs(made)
    found = {point.name: (point.state, point.exit_status, point.reason) for point in made.result.points}
    assert found["w1-zero2"] == ("failed", 6, "job 100: the reason")
    assert found["w2-zero2"] == ("failed", 3, "job 101: Slurm says CANCELLED, by 1000")


def test_a_job_whose_run_is_too_short_or_gone(tmp_path: Path, slurm: Slurm) -> None:
    import shutil

    made = sweep(tmp_path)
    jobs.submit_points(made)
    end(tmp_path, 1, updates=3)
    shutil.rmtree(tmp_path / "points" / "w2-zero2")
    jobs.wait_for_jobs(made)
    reasons = [point.reason for point in made.result.points]
    assert "3 updates in its metrics, 11 are needed" in reasons[0] and "is gone" in reasons[1]
    assert [point.exit_status for point in made.result.points] == [5, 5]


def test_a_job_that_would_not_fit_is_not_queued(tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(resolved: Any, how: Any) -> None:
        if resolved.world_size == 1:
            raise DoesNotFitError("too much for one rank")

    monkeypatch.setattr(jobs, "require_room_there", refuse)
    made = sweep(tmp_path)
    assert jobs.submit_points(made) == 1 and slurm.submitted == ["w2-zero2"]
    assert (made.result.points[0].state, made.result.points[0].exit_status) == ("does_not_fit", 7)
    # What was left behind by an earlier job of the point makes place for the new one.
    again = sweep(tmp_path)
    recall(again)
    (tmp_path / "points" / "w1-zero2").mkdir()
    monkeypatch.setattr(jobs, "require_room_there", lambda resolved, how: None)
    assert jobs.submit_points(again) == 1
