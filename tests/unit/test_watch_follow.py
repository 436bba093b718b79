"""A run's folder as `ftlaunch watch` follows it: launches, resumption, several ranks, and the ends of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from launcher.run_folder import locked
from launcher.watching import follow
from launcher.watching.follow import Follower
from launcher.watching.notices import notice
from tests.unit.local_launch import resolved_for
from tests.unit.test_cli import ftlaunch


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that nobody has launched, on two ranks."""
    monkeypatch.setattr(follow, "LOOK_S", 0.0)
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    folder.resolved.write_text(resolved_for().to_json())
    return folder


def add(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def update(number: int, at: float, attempt: int = 1, **other: Any) -> dict[str, Any]:
    fields = {"total_updates": 10, "loss": 5.0 - number, "grad_norm": 1.0, "seconds": 0.5, "tokens_per_s": 10.0, "supervised_tokens_per_s": 4.0}
    return {"schema": 1, "attempt": attempt, "time": at, "update": number, **fields, **other}


def rank_line(number: int, attempt: int = 1, *, idle: float = 0.0, caused: float = 0.0) -> dict[str, Any]:
    phases = {"forward": 0.4, "backward": 0.6 - idle, "idle": idle}
    told = {"phases": phases, "phase_seconds": 1.0, "caused_idle_seconds": caused, "late_phase": "forward" if caused else "", "host": "a"}
    return {"update": number, "attempt": attempt, "peak_memory_bytes": 2**30, **told}


def launched(attempt: int, at: float) -> dict[str, Any]:
    return {"event": "launch_started", "time": at, "attempt": attempt, "host": "a"}


def test_from_nothing_to_the_end(run_dir: RunDir) -> None:
    followed = Follower(run_dir)
    assert (followed.poll().state, followed.poll().why) == ("new", "no launch has begun")
    began = time.time()
    with locked(run_dir):
        run_dir.attempt_logs(1).mkdir(parents=True)
        add(run_dir.events, launched(1, began))
        assert (followed.poll().state, followed.poll().stage) == ("preparing", "preparing data and model")
        run_dir.rank_log(1, 0).touch()
        assert (followed.poll().state, followed.poll().stage) == ("running", "starting the ranks and loading the model")
        add(run_dir.events, {"event": "loop_start", "time": began, "attempt": 1, "update": 0, "world_size": 2})
        assert followed.poll().stage == ""
        # A clock that is set back, or that of another host, changes nothing.
        pace = {"phase_updates": 1, "phase_seconds": 3.0, "window_train_seconds": 0.5}
        add(run_dir.metrics, update(1, began + 1, **pace), update(2, began - 50, **pace))
        add(run_dir.rank_metrics(0), rank_line(1, idle=0.2), rank_line(2, idle=0.2))
        add(run_dir.rank_metrics(1), rank_line(1, caused=0.2), rank_line(2, caused=0.2))
        seen = followed.poll()
        assert seen.left_s == pytest.approx(24.0) and [value for _, value in seen.losses.points] == [4.0, 3.0]
        assert [each.phases.get("idle", 0.0) for each in seen.ranks] == [pytest.approx(0.2), 0.0]
        assert seen.slowest is not None and (seen.slowest.rank, seen.slowest.late_phase) == (1, "forward") and seen.slowest.caused_idle == pytest.approx(0.2)
        add(run_dir.metrics, update(10, began - 30))
        assert followed.poll().stage == "evaluating and saving"
        (run_dir.attempt_logs(1) / "export.log").touch()
        assert followed.poll().stage == "exporting the model"
        scores = {"event": "evaluation", "set": "eval", "loss": 1.5, "perplexity": 4.48, "update": 10, "time": began}
        add(run_dir.events, scores, {"event": "launch_ended", "time": began + 40, "attempt": 1, "status": 0, "reason": "done", "seconds": 40.0})
    seen = followed.poll()
    assert seen.state == "finished" and seen.is_over and seen.elapsed_s == pytest.approx(40.0) and seen.left_s is None
    assert seen.evaluations == ("eval loss 1.5000, perplexity 4.48 (after update 10)",)
    assert [each.text for each in seen.notices][-1] == "attempt 1 ended: done, after 0:00:40"


def test_a_resumed_run_is_followed(run_dir: RunDir) -> None:
    followed, began = Follower(run_dir), time.time() - 100
    add(run_dir.events, launched(1, began))
    add(run_dir.metrics, *(update(number, began + number) for number in range(1, 7)))
    add(run_dir.rank_metrics(1), rank_line(6, caused=0.5))
    run_dir.attempt_logs(1).mkdir(parents=True)
    assert followed.poll().state == "failed" and followed.poll().losses.points[-1] == (6, -1.0)
    with locked(run_dir):
        run_dir.attempt_logs(2).mkdir(parents=True)
        # The lines of updates that are done again are dropped, as a resumed run does it.
        lines = run_dir.metrics.read_text().splitlines(keepends=True)
        run_dir.metrics.write_text("".join(lines[:4]))
        again = {"event": "resumed", "time": time.time(), "attempt": 2, "update": 4, "path": "update_00000004"}
        add(run_dir.events, launched(2, time.time()), {"event": "loop_start", "time": time.time(), "attempt": 2}, again)
        seen = followed.poll()
        assert (seen.state, seen.attempt, seen.losses.points[-1]) == ("running", 2, (4, 1.0)) and seen.elapsed_s is not None and seen.elapsed_s < 20
        add(run_dir.metrics, update(5, time.time(), attempt=2))
        add(run_dir.rank_metrics(1), rank_line(5, attempt=2))
        seen = followed.poll()
        assert [number for number, _ in seen.losses.points] == [1, 2, 3, 4, 5] and seen.slowest is None
        # One line of this launch says nothing of its pace yet: the update's own seconds do.
        assert seen.left_s is not None
        assert "goes on after update 4, from update_00000004" in [each.text for each in seen.notices]


def test_a_long_run_is_not_read_whole(run_dir: RunDir) -> None:
    began = time.time()
    padding = "x" * 400
    add(run_dir.metrics, *(update(number, began + number, text=padding, total_updates=10**6) for number in range(1, 20_001)))
    assert run_dir.metrics.stat().st_size > 10e6
    followed = Follower(run_dir)
    started = time.thread_time()
    seen = followed.poll()
    took = time.thread_time() - started
    assert seen.line["update"] == 20_000 and seen.losses.points[0][0] == 1 and 1000 < len(seen.losses.points) < 4200
    assert took < 5


def test_lines_of_earlier_versions(run_dir: RunDir) -> None:
    add(run_dir.metrics, {"update": 3, "total_updates": 9, "loss": "nan", "seconds": 2.0})
    add(run_dir.rank_metrics(0), {"update": 3, "forward": 0.25, "backward": 0.5, "step": 0.25, "data_wait_seconds": 0.0})
    seen = Follower(run_dir).poll()
    assert seen.losses.points == [] and seen.ranks[0].phases == {"forward": 0.25, "backward": 0.5, "optimizer": 0.25} and len(seen.ranks) == 1


def test_a_finding_names_the_slow_rank_until_the_next_launch(run_dir: RunDir) -> None:
    followed = Follower(run_dir)
    add(run_dir.events, launched(1, 1.0), {"event": "finding", "kind": "slow_rank", "rank": 1, "update": 7, "what": "rank 1 is slow", "time": 2.0})
    assert followed.poll().slow_ranks == {1} and followed.poll().notices[-1].text == "slow_rank at update 7: rank 1 is slow"
    add(run_dir.events, launched(2, 3.0))
    assert followed.poll().slow_ranks == frozenset()


@pytest.mark.parametrize(
    ("event", "text", "tone"),
    [
        ({"event": "error", "rank": 1, "problems": [{"what": "loss is nan\nmore"}]}, "rank 1: loss is nan", "wrong"),
        ({"event": "error", "traceback": "a\nValueError: no"}, "ValueError: no", "wrong"),
        ({"event": "rank_exit", "rank": 2, "host": "b", "status": 137}, "rank 2 on b ended: killed by SIGKILL (exit status 137)", "wrong"),
        ({"event": "launch_ended", "attempt": 1, "status": 75, "reason": ""}, "attempt 1 ended: exit status 75", "warn"),
        ({"event": "save_failed", "update": 4, "reason": "disk full"}, "the checkpoint after update 4 was not saved: disk full", "wrong"),
        ({"event": "requeued", "job": "7", "reason": "a node failed"}, "job 7 is back in the queue: a node failed", "warn"),
        ({"event": "restart", "number": 2, "reason": "rank 1 failed"}, "going on by itself, for the 2. time: rank 1 failed", "warn"),
        ({"event": "resumed_with", "changed": {"world_size": [2, 4]}}, "goes on with other settings: world_size", ""),
        ({"event": "note", "text": "two\n  lines"}, "two lines", ""),
    ],
)
def test_events_as_lines(event: dict[str, Any], text: str, tone: str) -> None:
    made = notice(event)
    assert made is not None and (made.text, made.tone) == (text, tone)


@pytest.mark.parametrize("event", [{"event": "error", "lost_peer": True}, {"event": "rank_exit", "status": 0}, {"event": "ready"}, {}, {"event": None}])
def test_events_that_are_no_news(event: dict[str, Any]) -> None:
    assert notice(event) is None


def test_what_a_terminal_would_obey_is_shown(run_dir: RunDir) -> None:
    add(run_dir.events, {"event": "note", "time": 1.0, "text": "\x1b[2J gone"})
    assert Follower(run_dir).poll().notices[-1].text == "\\x1b[2J gone"


def test_the_verb_without_a_terminal(run_dir: RunDir, tmp_path: Path) -> None:
    add(run_dir.metrics, update(10, time.time()))
    add(run_dir.events, launched(1, 1.0), {"event": "launch_ended", "time": 5.0, "attempt": 1, "status": 0, "reason": "done"})
    for more in ([], ["--once"], ["--interval", "0.2"]):
        ended = ftlaunch(tmp_path, "watch", "run", *more)
        assert ended.returncode == 0 and "finished" in ended.stdout and "update 10/10" in ended.stdout and "\x1b" not in ended.stdout, ended.stderr
    assert ftlaunch(tmp_path, "watch", "nothing").returncode == CheckpointError.exit_status
    assert ftlaunch(tmp_path, "watch", "run", "--interval", "0").returncode == 2


def test_snapshots_end_with_the_run(run_dir: RunDir, tmp_path: Path) -> None:
    # A run that nobody has launched would be waited for without an end.
    ended = ftlaunch(tmp_path, "watch", "run", "--interval", "0.1")
    assert ended.returncode == 0 and "no launch has begun" in ended.stdout
