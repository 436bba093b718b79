"""Runs as they were recorded: half written, of earlier versions, resumed at other sizes, with clocks that jump; rates never hold the time between attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import RunRecord, attempts, covered, lines_by_attempt, read_run, totals
from launcher.inspect.events import last_launch
from tests.unit.made_runs import add_lines, line, made_run, old_line


def event(name: str, attempt: int, time: float, **fields: object) -> dict[str, object]:
    return {"event": name, "attempt": attempt, "time": time, **fields}


def two_attempts(folder: Path, *, jump_s: float = 0.0, price: float | None = None) -> RunRecord:
    """Three updates on two ranks, the third lost with the power; hours later two more from update 2 on four ranks. The clock jumps in the second attempt."""
    run_dir = made_run(folder, slots=4, price=price)
    add_lines(
        run_dir.events,
        event("launch_started", 1, 1000.0, world_size=2),
        event("loop_start", 1, 1010.0, update=0, world_size=2),
        event("launch_started", 2, 50000.0, world_size=4),
        event("resumed", 2, 50009.0, update=2),
        event("loop_start", 2, 50010.0, update=2, world_size=4),
        event("done_again", 2, 50010.0, update=2, updates=1, trained_by=1),
        event("launch_ended", 2, 50020.0 + jump_s, status=0, reason="done"),
    )
    add_lines(run_dir.metrics, line(1, attempt=1, time=1012.5), line(2, attempt=1, time=1015.0))
    later = {3: 50011.5, 4: 50013.0 + jump_s}
    add_lines(run_dir.metrics, *(line(update, attempt=2, time=time, world_size=4, seconds=1.0) for update, time in later.items()))
    return read_run(folder)


def test_the_time_between_attempts_is_in_no_rate(tmp_path: Path) -> None:
    record = two_attempts(tmp_path / "run", price=3.0)
    first, second = attempts(record)
    assert (first.world_size, first.first_update, first.updates, first.redone_updates, first.how_ended, first.ended) == (2, 0, 2, 1, "killed", None)
    assert (second.world_size, second.first_update, second.updates, second.redone_updates, second.how_ended) == (4, 2, 2, 0, "finished")
    assert (first.wall_s, second.wall_s) == (pytest.approx(15.0), pytest.approx(20.0))
    assert (first.supervised_tokens_per_s, second.supervised_tokens_per_s, second.tokens_per_s) == (20.0, 40.0, 100.0)
    found = totals(record)
    assert (found.updates, found.redone_updates, found.tokens, found.supervised_tokens, found.computed_tokens) == (4, 1, 400, 160, 500)
    assert found.training_s == 6.0 and found.tokens_per_s == pytest.approx(400 / 6) and found.supervised_tokens_per_s == pytest.approx(160 / 6)
    assert found.wall_s == pytest.approx(35.0) and found.device_hours == pytest.approx((2 * 15 + 4 * 20) / 3600)
    assert found.cost == pytest.approx(3.0 * 110 / 3600) and found.currency == "EUR"
    assert found.cost_per_million_supervised == pytest.approx(found.cost / 160e-6)
    assert found.padding_share == pytest.approx(0.2) and found.mfu is None and found.energy_joules is None


@pytest.mark.parametrize("jump_s", [-7200.0, 86400.0])
def test_a_clock_that_jumps_between_updates_changes_nothing(tmp_path: Path, jump_s: float) -> None:
    straight, jumped = two_attempts(tmp_path / "a"), two_attempts(tmp_path / "b", jump_s=jump_s)
    assert totals(jumped) == totals(straight)
    assert [each.wall_s for each in attempts(jumped)] == pytest.approx([15.0, 20.0])


def test_the_launchers_own_count_goes_before_any_clock(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    add_lines(run_dir.events, event("launch_started", 1, 1000.0), event("launch_ended", 1, 500.0, seconds=12.5, status=75, reason="asked to"))
    add_lines(run_dir.metrics, line(1, attempt=1, time=1003.0))
    (only,) = attempts(read_run(run_dir.path))
    assert (only.wall_s, only.how_ended, only.reason) == (12.5, "preempted", "asked to")


def test_a_clock_that_was_set_back_gives_no_negative_time(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    add_lines(run_dir.events, event("launch_started", 1, 9000.0), event("launch_ended", 1, 100.0, status=143))
    add_lines(run_dir.metrics, *(old_line(update) for update in (1, 2)))
    (only,) = attempts(read_run(run_dir.path))
    assert (only.wall_s, only.how_ended) == (4.0, "stopped"), "the seconds of its updates at least"


def test_a_rank_that_somebody_ended_is_no_stop(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    add_lines(run_dir.events, event("launch_started", 1, 1.0), event("failure", 1, 5.0, who="rank 1"), event("launch_ended", 1, 6.0, status=143))
    (only,) = attempts(read_run(run_dir.path))
    launch = last_launch(run_dir)
    assert only.how_ended == "killed" and launch is not None and launch.is_failure


def test_three_attempts_of_which_one_never_trained(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    add_lines(
        run_dir.events,
        event("launch_started", 1, 100.0, world_size=2),
        event("launch_ended", 1, 110.0, status=128 + 9, reason="rank 1 was killed", seconds=10.0),
        event("launch_started", 2, 200.0, world_size=2),
        event("launch_ended", 2, 203.0, status=3, reason="host b does not answer", seconds=3.0),
        event("launch_started", 3, 300.0, world_size=1),
        event("resumed", 3, 301.0, update=1),
    )
    add_lines(run_dir.metrics, line(1, attempt=1, time=105.0), line(2, attempt=3, time=304.0, world_size=1), line(3, attempt=3, time=306.5, world_size=1))
    found = attempts(read_run(run_dir.path))
    assert [(each.number, each.how_ended, each.updates, each.first_update) for each in found] == [(1, "killed", 1, 0), (2, "failed", 0, 1), (3, "", 2, 1)]
    assert found[1].tokens_per_s is None and found[1].supervised_tokens_per_s is None and found[1].device_s == 6.0
    assert (found[2].ended, found[2].wall_s) == (None, pytest.approx(6.5)), "to the last that was heard of it"


def test_runs_of_before_there_was_a_schema(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run", slots=4)
    add_lines(
        run_dir.events,
        event("launch_started", 1, 100.0),
        event("launch_ended", 1, 107.0, status=75, reason=""),
        event("resumed_with", 2, 200.0, world_size=4, world_size_before=2),
        event("launch_started", 2, 201.0),
        event("resumed", 2, 203.0, update=2),
        event("launch_ended", 2, 211.0, status=0, reason="done"),
    )
    add_lines(run_dir.metrics, *(old_line(update) for update in (1, 2)), *(old_line(update, seconds=1.0) for update in (3, 4)))
    record = read_run(run_dir.path)
    assert {which: [each["update"] for each in lines] for which, lines in lines_by_attempt(record).items()} == {1: [1, 2], 2: [3, 4]}
    assert [(each.world_size, each.updates, each.wall_s, each.tokens_per_s) for each in attempts(record)] == [(2, 2, 7.0, 50.0), (4, 2, 10.0, 100.0)]
    assert totals(record).tokens_per_s == pytest.approx(400 / 6)


def test_a_run_that_began_again_from_its_start(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    note = event("note", 2, 201.0, text="stopped before its first checkpoint was whole: starting from update 0")
    add_lines(run_dir.events, event("launch_started", 1, 100.0), event("launch_started", 2, 200.0), note)
    add_lines(run_dir.metrics, old_line(1))
    assert [(each.updates, each.first_update) for each in attempts(read_run(run_dir.path))] == [(0, 0), (1, 0)]


def test_lines_that_cover_several_updates(tmp_path: Path) -> None:
    """L05, L06: with logging_steps 10, sums and rates are of all ten updates."""
    run_dir = made_run(tmp_path / "run")
    window = {"window_tokens": 1000, "window_supervised_tokens": 300, "window_computed_tokens": 1100, "window_train_seconds": 25.0}
    ten = {**line(10, attempt=1, time=200.0), **window, "phase_updates": 10, "phase_seconds": 30.0}
    add_lines(run_dir.metrics, ten, {**ten, "update": 20, "time": 230.0, "tokens_seen": 2000, "supervised_tokens_seen": 600})
    found = totals(read_run(run_dir.path))
    assert (found.updates, found.tokens, found.supervised_tokens, found.tokens_per_s, found.supervised_tokens_per_s) == (20, 2000, 600, 40.0, 12.0)
    assert attempts(read_run(run_dir.path))[0].updates == 20
    assert covered(ten).wall_s == 30.0 and covered(old_line(3)).wall_s == 2.0 and covered({}).updates == 1


def test_mfu_and_energy_are_means_and_sums_of_all_or_nothing(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    measured = {"mfu": 0.5, "energy_joules": 10.0}
    add_lines(run_dir.metrics, line(1, attempt=1, time=3.0, seconds=1.0, **measured), line(2, attempt=1, time=6.0, seconds=3.0, mfu=0.1, energy_joules=30.0))
    found = totals(read_run(run_dir.path))
    assert (found.mfu, found.energy_joules) == (pytest.approx(0.2), 40.0)
    # Of device time: four ranks for a second more count four times.
    add_lines(run_dir.metrics, line(3, attempt=2, time=9.0, seconds=1.0, world_size=4, mfu=0.4, energy_joules=2.0))
    assert totals(read_run(run_dir.path)).mfu == pytest.approx((2 * 1 * 0.5 + 2 * 3 * 0.1 + 4 * 1 * 0.4) / (2 * 1 + 2 * 3 + 4 * 1))
    add_lines(run_dir.metrics, line(4, attempt=2, time=9.0, mfu=None, energy_joules=None))
    found = totals(read_run(run_dir.path))
    assert (found.mfu, found.energy_joules) == (None, None)


def test_half_lines_and_what_is_missing(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    empty = read_run(run_dir.path)
    assert (empty.updates, empty.ranks, empty.events, empty.plan, attempts(empty)) == ([], {}, [], None, [])
    assert (totals(empty).tokens_per_s, totals(empty).cost, totals(empty).padding_share, totals(empty).updates) == (None, None, None, 0)
    torn = b'5\n[]\n{"update": "x"}\n{"update": true}\n{"event": 3}\n' + b"[" * 100_000 + b'\n\xff{"upd\n'
    for path in (run_dir.metrics, run_dir.events, run_dir.rank_metrics(1)):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(torn)
        add_lines(path, {"event": "note", "update": 1, "seconds": "nan"}, {"event": "note", "update": 1, "loss": 2})
        path.write_bytes(path.read_bytes() + b'{"event": "note", "update": 2, "lo')
    run_dir.rank_metrics(1).with_name("rank_x.jsonl").write_text('{"update": 1}\n')
    run_dir.plan_json.write_text("[1")
    run_dir.memory_json.write_text('{"a": 1}')
    record = read_run(run_dir.path)
    assert [each["update"] for each in record.updates] == [1] and record.updates[0]["loss"] == 2, "what was written last counts"
    assert list(record.ranks) == [1] and len(record.events) == 2 and record.plan is None and record.memory == {"a": 1}
    assert read_run(run_dir.path, with_ranks=False).ranks == {}
    assert totals(record).tokens_per_s is None


def test_what_a_lost_rank_wrote_of_updates_that_others_trained_again(tmp_path: Path) -> None:
    """A resume on fewer ranks: nobody cuts the files of those that are gone."""
    run_dir = made_run(tmp_path / "run")
    add_lines(run_dir.metrics, line(1, attempt=1, time=1.0), line(2, attempt=2, time=9.0, world_size=1), {**old_line(3), "world_size": 1})
    add_lines(run_dir.rank_metrics(1), *({"update": update, "attempt": 1} for update in (1, 2)), {"update": 3}, {"update": 4, "attempt": 1})
    assert [each["update"] for each in read_run(run_dir.path).ranks[1]] == [1, 4], "the last one is not in metrics.jsonl yet"


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no run"):
        read_run(tmp_path)
    RunDir(tmp_path).resolved.write_text("{")
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        read_run(tmp_path)
    assert caught.value.problems[0].fix.startswith("put resolved.json back")
