"""Which of all that went wrong is told, and what is told of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.backends.base import Launch
from launcher.backends.host_group import Ending
from launcher.events_file import append_event
from launcher.failure import RunFailedError, RunStoppedError, as_error, memory_hints, tail
from launcher.group_failure import group_failure
from launcher.record import Record
from tests.unit.local_launch import resolved_for

PROBLEM = {"what": "it broke", "where": "", "fix": "", "file": "", "line": None}


def a_launch(folder: Path) -> Launch:
    """Two ranks on alpha, two on beta."""
    resolved = resolved_for()
    hosts = (Host(name="alpha", slots=2), Host(name="beta", slots=2))
    resolved = ResolvedSpec(spec=resolved.spec, hosts=hosts, sources={}, cache_dir="/tmp")
    return Launch(run_dir=RunDir(folder), resolved=resolved, attempt=1, environment={}, lock_handle=0, prepare=(), export=None)


def record_of(*events: dict[str, object]) -> Record:
    record = Record()
    for event in events:
        record.add({"time": 0.0, "host": "beta", **event})
    return record


def an_error(rank: int | None, *, lost_peer: bool = False) -> dict[str, object]:
    error = {"event": "error", "kind": "TrainingError", "problems": [PROBLEM], "rank": rank, "exit_status": 6, "traceback": ""}
    return {**error, "lost_peer": lost_peer}


def an_exit(rank: int, status: int, **more: object) -> dict[str, object]:
    return {"event": "rank_exit", "rank": rank, "status": status, "ended_by_launcher": False, **more}


def report(record: Record, ending: Ending, folder: Path) -> RunFailedError:
    failure = group_failure(record, ending, a_launch(folder))
    assert failure is not None
    error = as_error(failure, "do this")
    assert isinstance(error, RunFailedError)
    return error


def test_a_run_that_ended_as_it_should(tmp_path: Path) -> None:
    assert group_failure(record_of(an_exit(0, 0)), Ending(statuses={"alpha": 0, "beta": 75}), a_launch(tmp_path)) is None


def test_ranks_that_miss_others_tell_of_the_lost_host(tmp_path: Path) -> None:
    """I01: what the ranks of a sound host say is a consequence."""
    error = report(record_of(an_error(0, lost_peer=True), an_exit(0, 6)), Ending(lost={"beta": "the connection ended", "alpha": "it too"}), tmp_path)
    assert error.exit_status == 3 and error.is_infrastructure
    assert str(error).splitlines()[:3] == ["host beta was lost: exit status 3", "    the connection ended", "    alpha: it too"]
    assert "ftlaunch doctor --hosts" in str(error) and "node_1.log" in str(error)


def test_an_error_that_came_before_a_host_was_lost(tmp_path: Path) -> None:
    error = report(record_of(an_error(2), an_exit(2, 6)), Ending(lost={"beta": "the connection ended"}, lost_at=1e12), tmp_path)
    assert str(error).startswith("rank 2 on beta failed: exit status 6\n    it broke") and not error.is_infrastructure


def test_ranks_that_only_miss_each_other(tmp_path: Path) -> None:
    error = report(record_of(an_error(1, lost_peer=True), an_exit(1, 6)), Ending(), tmp_path)
    assert str(error).startswith("rank 1 on beta failed") and error.is_infrastructure


def test_a_rank_that_left_too_early_is_named(tmp_path: Path) -> None:
    error = report(record_of(an_exit(3, 0), an_error(1, lost_peer=True), an_exit(1, 6)), Ending(), tmp_path)
    assert str(error).startswith("rank 3 on beta left before the training was done: exit status 1\n    it ended with exit status 0") and error.exit_status == 1


def test_a_line_that_a_kill_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    append_event(run_dir, {"event": "one"}, 1)
    run_dir.events.write_bytes(run_dir.events.read_bytes() + b'{"event": "launch_sta')
    append_event(run_dir, {"event": "two"}, 2)
    append_event(run_dir, {"event": "three"}, 2)
    assert run_dir.events.read_text().splitlines()[2:] == ['{"event": "two", "attempt": 2}', '{"event": "three", "attempt": 2}']


def test_a_preempted_run_in_which_ranks_miss_those_that_were_loading(tmp_path: Path) -> None:
    missing = record_of(an_error(1, lost_peer=True), an_exit(1, 6))
    assert group_failure(missing, Ending(is_preempted=True), a_launch(tmp_path)) is None
    assert "it broke" in str(report(record_of(an_error(1), an_exit(1, 6)), Ending(is_preempted=True), tmp_path))


def test_a_supervisor_that_could_not_start_its_ranks(tmp_path: Path) -> None:
    refused = {**an_error(None), "kind": "ClusterError", "exit_status": 3}
    failure = group_failure(record_of(refused), Ending(statuses={"beta": 3}), a_launch(tmp_path))
    assert failure is not None and as_error(failure, "do this").exit_status == 3 and "node_1.log" in str(failure.log)


def test_a_supervisor_that_ended_without_a_word(tmp_path: Path) -> None:
    error = report(Record(), Ending(statuses={"alpha": 0, "beta": 137}), tmp_path)
    assert str(error).startswith("the supervisor of the ranks on beta failed: killed by SIGKILL") and error.exit_status == 137


def test_a_run_that_hung_says_where_each_rank_was(tmp_path: Path) -> None:
    places = {0: "all_reduce (torch.py:3)", 3: "read (data.py:7)"}
    ending = Ending(is_stalled=True, stacks=places, stall_places={0: "train after update 4"})
    starting = str(report(Record(), Ending(is_stalled=True, is_starting=True), tmp_path))
    assert "not every rank had begun to work 900 s after the start (cluster.start_timeout)" in starting and "raise cluster.start_timeout" in starting
    error = report(Record(), ending, tmp_path)
    text = str(error)
    assert error.exit_status == 6 and error.is_infrastructure and text.startswith("the run hung: exit status 6\n    no rank made progress for 1800 s")
    assert "rank 0 on alpha: all_reduce (torch.py:3); train after update 4" in text and "rank 3 on beta: read (data.py:7); before its first" in text
    assert "rank 1 on alpha: its stack could not be had" in text and f"its log: {tmp_path}/logs/attempt_1/stacks" in text


@pytest.mark.parametrize(("kills", "again", "said"), [(1, False, "out of memory: the kernel killed it"), (0, True, "the kernel kills so when memory runs out")])
def test_a_rank_killed_for_memory(tmp_path: Path, kills: int, again: bool, said: str) -> None:
    """With the numbers that its host saw; a run whose memory ran out is not started again."""
    killed = an_exit(2, 137, resident_bytes=3 << 30, limit_bytes=4 << 30, available_bytes=1 << 30, oom_kills=kills)
    error = report(record_of(killed), Ending(), tmp_path)
    assert said in str(error) and "it held up to 3.0 GiB, its control group may hold 4.0 GiB, the host has left 1.0 GiB" in str(error)
    assert error.is_infrastructure is again
    assert memory_hints(an_exit(2, 139)) == ()
    (plenty,) = memory_hints(an_exit(2, 137, resident_bytes=1 << 30, available_bytes=3 << 30))
    assert "by these numbers memory was not short (it held up to 1.0 GiB, the host has left 3.0 GiB)" in plenty


def test_what_a_signal_ends_with() -> None:
    assert RunStoppedError(signal.SIGTERM, "x").exit_status == RunStoppedError(signal.SIGUSR1, "x").exit_status == 75
    by_rank = RunStoppedError(0, "x")
    assert by_rank.exit_status == 75 and "preempted by a signal to one of its ranks" in str(by_rank)
    late = RunStoppedError(signal.SIGTERM, "x", late_s=600)
    assert late.exit_status == 143 and "before it had saved in 600 s (cluster.preempt_grace)" in str(late)
    assert RunStoppedError(signal.SIGHUP, "x").exit_status == 129


def test_the_last_lines_of_a_log_are_no_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "rank_0.log"
    log.write_text("a warning\nLoading weights:  50%|#####     | 6/12\rLoading weights: 100%|##########| 12/12 [00:00<00:00]\n")
    assert tail(log) == ["a warning"]
    log.write_text("Loading: 100%|##########| 12/12\n")
    assert tail(log) == ["Loading: 100%|##########| 12/12"]
