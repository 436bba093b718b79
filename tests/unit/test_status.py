"""In which state a run is, and what `ftlaunch status` reads from its folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import attempts, read_run, totals
from launcher.inspect.events import Holder, LastLaunch, holder, last_launch, last_line
from launcher.inspect.report import find_runs, look, render_line, render_report
from launcher.inspect.state import Seen, State, judge
from launcher.run_folder import locked
from launcher.submission.slurm import JobState
from tests.unit.local_launch import resolved_for
from tests.unit.test_cli import ftlaunch

NOTHING = Seen(held=None, launch=None, attempts=0, is_trained=False, jobs=(), was_cancelled=False)
WAITS = JobState(job="7", state="PENDING", reason="Priority")


def ended(status: int | None, reason: str = "") -> LastLaunch:
    return LastLaunch(attempt=1, started=0.0, status=status, reason=reason)


@pytest.mark.parametrize(
    ("seen", "state", "why"),
    [
        (NOTHING, State.NEW, "no launch"),
        (replace(NOTHING, held=Holder(pid=1, host="a"), launch=ended(75)), State.RUNNING, ""),
        (replace(NOTHING, launch=ended(0)), State.FINISHED, ""),
        (replace(NOTHING, launch=ended(75)), State.PREEMPTED, "can go on"),
        (replace(NOTHING, launch=ended(2, "rank 1 failed")), State.FAILED, "rank 1 failed"),
        (replace(NOTHING, launch=ended(128 + 9)), State.FAILED, "SIGKILL"),
        (replace(NOTHING, launch=ended(130)), State.STOPPED, "SIGINT"),
        # Somebody's signal ended a rank, not the launch.
        (replace(NOTHING, launch=replace(ended(143, "rank 1: killed by SIGTERM"), is_failure=True)), State.FAILED, "rank 1"),
        (replace(NOTHING, launch=ended(None)), State.FAILED, "killed"),
        # No event of a launch: its script was started by hand, or its events are lost.
        (replace(NOTHING, attempts=2), State.FAILED, "not recorded"),
        (replace(NOTHING, attempts=2, is_trained=True), State.FINISHED, ""),
        (replace(NOTHING, jobs=(WAITS,)), State.QUEUED, "Priority"),
        (replace(NOTHING, jobs=(WAITS,), launch=ended(75), attempts=1), State.REQUEUED, "job 7 waits"),
        (replace(NOTHING, jobs=(replace(WAITS, restarts=1),)), State.REQUEUED, ""),
        (replace(NOTHING, jobs=(JobState(job="6", state="FAILED"), WAITS)), State.REQUEUED, ""),
        (replace(NOTHING, jobs=(JobState(job="7", state="COMPLETING"),)), State.RUNNING, "completing"),
        (replace(NOTHING, jobs=(JobState(job="7", state="CANCELLED"),)), State.STOPPED, "cancelled"),
        (replace(NOTHING, jobs=(JobState(job="7", state="GONE"),), launch=ended(None), was_cancelled=True), State.STOPPED, "cancelled"),
        (replace(NOTHING, jobs=(JobState(job="7", state="FAILED"), JobState(job="8", state="CANCELLED"))), State.FAILED, "its job failed"),
        (replace(NOTHING, jobs=(JobState(job="7", state="NODE_FAIL"),), launch=ended(None), attempts=1), State.FAILED, "a node of its job failed"),
        (replace(NOTHING, jobs=(JobState(job="7", state="TIMEOUT"),), launch=ended(75), attempts=1), State.PREEMPTED, ""),
    ],
)
def test_states(seen: Seen, state: State, why: str) -> None:
    verdict = judge(seen)
    assert verdict.state is state and why in verdict.why


def test_the_page_on_slurm_names_every_state() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("ftlaunch status runs/a")]
    assert [state for state in State if str(state) not in line] == []


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run that failed in its second launch, after three of ten updates."""
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    folder.resolved.write_text(resolved_for().to_json())
    for attempt in (1, 2):
        folder.attempt_logs(attempt).mkdir(parents=True)
    counts = {"tokens": 100, "supervised_tokens": 30, "computed_tokens": 128, "peak_memory_bytes": 2**30}
    updates = [{"update": number, "total_updates": 10, "loss": 2.5 - number, "seconds": 2.0, **counts} for number in (1, 2, 3)]
    folder.metrics.write_text("".join(json.dumps(update) + "\n" for update in updates) + '{"update": 4, "to')
    write_events(
        folder,
        {"event": "launch_started", "attempt": 1, "time": 1.0},
        {"event": "launch_ended", "attempt": 1, "status": 75, "reason": "preempted"},
        {"event": "launch_started", "attempt": 2, "time": 2.0},
        {"event": "error", "attempt": 2, "rank": 1, "problems": [{"what": "loss is nan\nmore"}]},
        {"event": "launch_ended", "attempt": 2, "status": 6, "reason": "rank 1 on a failed: exit status 6"},
    )
    return folder


def write_events(run_dir: RunDir, *events: dict[str, Any]) -> None:
    run_dir.events.write_text("not JSON launch_started\n" + "".join(json.dumps(event) + "\n" for event in events))


def test_a_report(run_dir: RunDir) -> None:
    report = look(run_dir)
    assert (report.state, report.why, report.attempt) == ("failed", "rank 1 on a failed: exit status 6", 2)
    assert (report.update, report.total_updates, report.loss, report.last_error) == (3, 10, -0.5, "rank 1: loss is nan")
    assert (report.hosts, report.launcher, report.seconds_left) == (["localhost:2"], "", None)
    text = render_report(report)
    assert all(line in text for line in ("state       failed", "progress    update 3/10", "last error  rank 1: loss is nan", "checkpoint  none yet"))
    assert "failed  update 3/10  loss -0.5000" in render_line(report)


def test_rates_and_cost_are_those_of_the_record(run_dir: RunDir) -> None:
    """Of the newest attempt that trained: neither what one update did last, nor the time before a resume."""
    write_events(
        run_dir,
        {"event": "launch_started", "attempt": 1, "time": 1000.0},
        {"event": "launch_ended", "attempt": 1, "time": 1030.0, "seconds": 30.0, "status": 75},
        {"event": "launch_started", "attempt": 2, "time": 9000.0},
        {"event": "resumed", "attempt": 2, "time": 9001.0, "update": 1},
        {"event": "launch_ended", "attempt": 2, "time": 9060.0, "seconds": 60.0, "status": 0},
    )
    report, record = look(run_dir), read_run(run_dir.path)
    assert (report.tokens_per_s, report.supervised_tokens_per_s) == (50.0, 15.0)
    assert report.tokens_per_s == attempts(record)[1].tokens_per_s and report.device_hours == totals(record).device_hours == 2 * 90 / 3600
    text = render_report(report)
    assert "speed       15 supervised tokens/s, 50 tokens/s in this attempt" in text and "memory      1.0 GiB, rank 0's peak" in text
    assert "device time 0.05 device-hours\n" in text, "there is no price"
    resolved = load_resolved(run_dir.resolved)
    priced = replace(resolved, spec=replace(resolved.spec, hardware=replace(resolved.spec.hardware, price_per_hour=20.0, currency="EUR")))
    run_dir.resolved.write_text(priced.to_json())
    assert "device time 0.05 device-hours, 1.00 EUR" in render_report(look(run_dir))


def test_a_run_that_never_trained_has_no_speed(run_dir: RunDir) -> None:
    run_dir.metrics.unlink()
    run_dir.events.unlink()
    report = look(run_dir)
    assert (report.tokens_per_s, report.supervised_tokens_per_s, report.device_hours) == (None, None, 0.0)
    assert "speed" not in render_report(report) and "device time" not in render_report(report)


def test_a_running_one(run_dir: RunDir) -> None:
    with locked(run_dir):
        report = look(run_dir)
        assert (report.state, report.launcher_alive, report.seconds_left, report.last_error) == ("running", True, 14.0, "")
        assert report.launcher.startswith(f"process {os.getpid()} on ") and "time left   0:00:14" in render_report(report)
    assert holder(run_dir) is None


def test_a_dry_run_is_no_launch(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    folder.attempt_logs(1).mkdir(parents=True)
    folder.resolved.write_text(resolved_for().to_json())
    (folder.attempt_logs(1) / "prepare.log").touch()
    assert (look(folder).state, look(folder).attempt) == ("new", 0)
    folder.rank_log(1, 0).touch()
    assert (look(folder).state, look(folder).attempt) == ("failed", 1)


def test_looking_hinders_no_launch(run_dir: RunDir) -> None:
    with locked(run_dir):
        pass
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        holder(run_dir)
    with locked(run_dir):
        assert holder(run_dir) is not None


def test_what_is_missing_or_half_written(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none") == {} and last_launch(RunDir(tmp_path)) is None and holder(RunDir(tmp_path)) is None
    (tmp_path / "lines").write_text('{"a": 1}\n[2]\n{"b"')
    assert last_line(tmp_path / "lines") == {"a": 1}
    (tmp_path / "empty").write_text("\n\n")
    assert last_line(tmp_path / "empty") == {}


@pytest.mark.parametrize("told", ["", "localhost: the connection to the launcher has ended", "ModuleNotFoundError: No module named 'launcher'"])
def test_what_a_library_warned_of_is_no_error(told: str, run_dir: RunDir) -> None:
    write_events(run_dir, {"event": "launch_started", "attempt": 2, "time": 2.0})
    (run_dir.attempt_logs(2) / "node_0.log").write_text(f"{told}\nFailed to load a kernel: No module named 'kernels'\n")
    assert look(run_dir).last_error == told


def test_folders(run_dir: RunDir) -> None:
    assert find_runs(run_dir.path) == [run_dir] and find_runs(run_dir.path.parent) == [run_dir]
    for wrong in (run_dir.path / "logs", run_dir.path / "none"):
        with pytest.raises(CheckpointError, match="holds no run"):
            find_runs(wrong)


def test_the_command(run_dir: RunDir) -> None:
    folder = run_dir.path.parent
    report = json.loads(ftlaunch(folder, "status", "run", "--json").stdout)
    assert (report["run"], report["state"], report["jobs"]) == ("run", "failed", [])
    assert [each["run"] for each in json.loads(ftlaunch(folder, "status", ".", "--json").stdout)] == ["run"]
    assert ftlaunch(folder, "status", ".").stdout.startswith("run: failed  update 3/10")
    assert ftlaunch(folder, "status", "none").returncode == 5


def test_the_folder_of_a_scaling_test_is_no_run_but_is_known(tmp_path: Path) -> None:
    (tmp_path / "scale.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds no run") as caught:
        find_runs(tmp_path)
    assert f"its page is {tmp_path}/scale.html" in str(caught.value.problems[0].fix)
