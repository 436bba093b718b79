from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.run_cost import priced, run_cost
from ftcore.spec.run_record import read_run
from ftcore.spec.scale_result import ScaleDir, ScalePoint, ScaleResult
from launcher.costs.measured import read_measured, save_seconds, start_seconds
from launcher.costs.run_report import report_facts, report_run
from launcher.costs.run_text import render_report
from tests.unit.planned_runs import run

START = 1_800_000_000.0
TOTAL = 200


def line(update: int, attempt: int, end: float, *, ranks: int = 2, **more) -> dict:
    """An update of 10 seconds with 2 more around it, 4,000 tokens, a quarter of them supervised."""
    phases = {"checkpoint": 0.5 if update % 10 == 1 else 0.0, "forward": 9.5}
    known = {"schema": 1, "update": update, "total_updates": TOTAL, "attempt": attempt, "time": end, "world_size": ranks, "loss": 1.0, "seconds": 10.0}
    known |= {"tokens": 4000, "supervised_tokens": 1000, "computed_tokens": 4000, "supervised_tokens_seen": 1000 * update, "tokens_seen": 4000 * update}
    return known | {"phase_updates": 1, "phase_seconds": 12.0, "window_train_seconds": 10.0, "phases": phases} | more


def evaluations(last: int) -> list[dict]:
    losses = {at: 1.5 + 1.5 * (at / 10) ** -0.8 for at in range(10, last + 1, 10)}
    return [{"event": "evaluation", "update": at, "set": "eval", "loss": loss, "tokens": 1, "time": START} for at, loss in losses.items()]


def made_run(folder: Path, *, hardware: dict | None = None, second: int = 120, status: int | None = None, **spec) -> Path:
    """A run of two attempts: the first trains 55 updates and is killed after the save of 50; the second goes on from there to `second`."""
    first_loop, again = START + 60, START + 60 + 55 * 12 + 300
    events = [
        {"event": "launch_started", "time": START, "attempt": 1, "world_size": 2},
        {"event": "loop_start", "time": first_loop, "attempt": 1, "update": 0, "world_size": 2},
        *({"event": "checkpoint", "time": first_loop + at * 12 + 4, "attempt": 1, "update": at} for at in range(10, 51, 10)),
        {"event": "launch_started", "time": again, "attempt": 2, "world_size": 2},
        {"event": "resumed", "time": again + 40, "attempt": 2, "update": 50},
        {"event": "done_again", "time": again + 40, "attempt": 2, "update": 50, "trained_by": 1, "updates": 5, "seconds": 60.0, "world_size": 2},
        {"event": "loop_start", "time": again + 40, "attempt": 2, "update": 50, "world_size": 2},
        *evaluations(second),
    ]
    if status is not None:
        events.append({"event": "launch_ended", "time": again + 40 + (second - 50) * 12, "attempt": 2, "status": status, "reason": ""})
    # Those of 51 to 55 were cut away by the second attempt.
    lines = [line(at, 1, first_loop + at * 12) for at in range(1, 51)]
    lines += [line(at, 2, again + 40 + (at - 50) * 12) for at in range(51, second + 1)]
    resolved = json.loads(run(ranks=2, method="lora").to_json())
    resolved["spec"]["hardware"] |= hardware if hardware is not None else {"price_per_hour": 3.6, "currency": "EUR"}
    resolved["spec"]["evaluation"]["eval_steps"] = 10
    for section, values in spec.items():
        resolved["spec"][section] |= values
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolved.json").write_text(json.dumps(resolved))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    return folder


def test_the_cost_so_far_by_hand(tmp_path):
    cost = run_cost(read_run(made_run(tmp_path / "run")), now=START + 10_000)
    first, second = cost.attempts
    # 60 s of start and 55 updates of 12 s; 40 s of start and 70 updates: 720 + 880 s on two devices at 3.6 an hour.
    assert (first.wall_s, second.wall_s) == (pytest.approx(720), pytest.approx(880))
    assert (first.start_s, second.start_s) == (60, 40)
    assert cost.totals.device_hours == pytest.approx(2 * 1600 / 3600)
    assert first.cost == pytest.approx(1.44) and second.cost == pytest.approx(1.76) and cost.totals.cost == pytest.approx(3.2)
    # 120 updates of 1,000 supervised tokens.
    assert cost.totals.cost_per_million_supervised == pytest.approx(3.2 / 0.12)
    assert (first.updates, first.redone_updates, first.redone_s, second.redone_updates) == (50, 5, 60.0, 0)
    assert cost.lost_s == 60 and cost.lost_cost == pytest.approx(60 * 2 * 3.6 / 3600)
    # The 300 s between the attempts are told, and cost nothing.
    assert cost.downtime_s == pytest.approx(300) and second.downtime_s == pytest.approx(300)
    assert cost.energy_kwh is None and cost.currency == "EUR"


def test_the_rest_by_hand(tmp_path):
    record = read_run(made_run(tmp_path / "run"))
    rest = run_cost(record, now=START + 10_000).rest
    assert rest.updates == 80 and rest.ranks == 2 and rest.seconds == pytest.approx(960) and rest.cost == pytest.approx(960 * 2 * 3.6 / 3600)
    assert rest.low_s <= rest.seconds <= rest.high_s and rest.ends_at == pytest.approx(START + 10_000 + 960)
    assert run_cost(record, now=0.0, is_over=True).rest is None
    assert run_cost(read_run(made_run(tmp_path / "done", second=TOTAL)), now=0.0).rest is None
    stopped = run_cost(read_run(made_run(tmp_path / "stopped", status=75)), now=START + 10_000)
    assert stopped.rest.ends_at == pytest.approx(START + 10_000 + 960)


def test_times_that_no_clock_can_have_are_borne(tmp_path):
    folder = made_run(tmp_path / "run")
    events = [json.loads(text) for text in (folder / "events.jsonl").read_text().splitlines()]
    # A launch that lost its time does not last since 1970.
    events[0] |= {"time": "nan"}
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    assert run_cost(read_run(folder), now=0.0).attempts[0].wall_s == pytest.approx(660)
    lines = [json.loads(text) | {"total_updates": 2**62} for text in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert " updates on 2 ranks: " in render_report(report_run(folder, gain=None, price=None, currency=None, now=START))


def test_few_lines_leave_much_open(tmp_path):
    folder = made_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text(json.dumps(line(1, 1, START + 72)) + "\n")
    rest = run_cost(read_run(folder), now=START).rest
    assert rest.low_s == pytest.approx(rest.seconds / 1.2) and rest.high_s == pytest.approx(rest.seconds * 1.2)
    (folder / "metrics.jsonl").write_text("")
    nothing = run_cost(read_run(folder), now=START)
    assert nothing.rest is None and nothing.total_updates == 0


def test_energy_is_told_where_it_was_measured(tmp_path):
    folder = made_run(tmp_path / "run")
    lines = [json.loads(text) | {"energy_joules": 3.6e4} for text in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert run_cost(read_run(folder), now=0.0).energy_kwh == pytest.approx(1.2)
    assert "  energy      1.2 kWh" in render_report(report_run(folder, gain=None, price=None, currency=None, now=0.0))


def test_another_price(tmp_path):
    record = read_run(made_run(tmp_path / "run", hardware={}))
    assert run_cost(record, now=0.0).totals.cost is None and run_cost(record, now=0.0).lost_cost is None
    other = run_cost(priced(record, 7.2, "CHF"), now=0.0)
    assert other.totals.cost == pytest.approx(6.4) and other.currency == "CHF"


def test_a_report_of_a_run(tmp_path):
    folder = made_run(tmp_path / "run", evaluation={"early_stopping_patience": 3}, checkpoint={"metric_for_best_model": "loss"})
    report = report_run(folder, gain=0.01, price=None, currency=None, now=START + 10_000)
    text = render_report(report)
    for part in (
        "update 120/200",
        "3.20 EUR",
        "26.67 EUR a million supervised tokens (120,000 supervised tokens)",
        "5 updates trained twice, 60 s, 0.12 EUR",
        "5 min between attempts",
        "80 updates on 2 ranks: 16 min",
        "1.92 EUR",
        "90% sure",
        "less than 0.01 (--gain) an evaluation after update",
        "that it ends the run before update 200",
        "saves 16 min and 1.92 EUR, and gives up a fall of the loss by 0.0",
        "killed",
    ):
        assert part in text, text
    facts = json.loads(json.dumps(report_facts(report), allow_nan=False))
    assert facts["kind"] == "run" and facts["cost"]["rest"]["updates"] == 80 and facts["forecast"]["state"] == "forecast"
    assert facts["saved_by_stopping"] == pytest.approx(1.92)


def test_reports_without_a_forecast_or_a_price(tmp_path):
    few = render_report(report_run(made_run(tmp_path / "few", hardware={}, second=60), gain=None, price=None, currency=None, now=START))
    assert "no price: give --price" in few and "EUR" not in few and "a million" not in few
    folder = made_run(tmp_path / "rising")
    events = [json.loads(text) for text in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "evaluation" and event["update"] > 60:
            event["loss"] += 0.01 * (event["update"] - 60)
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    rising = render_report(report_run(folder, gain=None, price=None, currency=None, now=START))
    assert "since update" in rising and "gives up nothing: the loss rises" in rising and "--best" in rising
    silent = made_run(tmp_path / "silent")
    (silent / "events.jsonl").write_text("")
    text = render_report(report_run(silent, gain=None, price=None, currency=None, now=START))
    assert "forecast" not in text and "can't be told" in text
    over = render_report(report_run(made_run(tmp_path / "over", second=TOTAL, status=0), gain=None, price=None, currency=None, now=START))
    assert "finished" in over and "the rest" not in over and "stop now" not in over


def test_wrong_questions_of_a_run(tmp_path):
    with pytest.raises(CheckpointError, match="holds no run"):
        report_run(tmp_path, gain=None, price=None, currency=None, now=0.0)
    with pytest.raises(SpecError, match="-2 is out of range"):
        report_run(made_run(tmp_path / "run"), gain=None, price=-2.0, currency=None, now=0.0)
    with pytest.raises(CheckpointError, match="holds 1 run,") as several:
        report_run(tmp_path, gain=None, price=None, currency=None, now=0.0)
    assert several.value.problems[0].fix == f"name one of them: ftlaunch cost {tmp_path / 'run'}"
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "scale.json").write_text("{}")
    with pytest.raises(CheckpointError, match="it is a scaling test"):
        report_run(tmp_path / "test", gain=None, price=None, currency=None, now=0.0)


def test_speeds_of_a_run_are_read(tmp_path):
    folder = made_run(tmp_path / "run")
    (speed,) = read_measured((folder,))
    assert (speed.ranks, speed.stage, speed.start_s) == (2, 2, 40) and speed.anchor.tokens_per_s == pytest.approx(400) and speed.spread == pytest.approx(0)
    # 11 lines hold 0.5 s of saving each begin; five saves are told, each whole 4 s after its update.
    record = read_run(folder)
    assert save_seconds(record) == (pytest.approx(12 * 0.5 / 5), pytest.approx(4.0)) and start_seconds(record) == 40
    (folder / "events.jsonl").write_text("")
    assert save_seconds(read_run(folder)) == (None, None) and start_seconds(read_run(folder)) is None
    with pytest.raises(CheckpointError, match="measured"):
        read_measured((tmp_path,))


def test_speeds_of_a_run_that_logs_seldom_and_changed_its_ranks(tmp_path):
    """Logged each 10th update, saved each 5th; the last four lines are of 4 ranks, and take 10, 20, 10 and 10 s in place of 10."""
    folder = made_run(tmp_path / "run")
    seconds = {70: 10.0, 80: 20.0, 90: 10.0, 100: 10.0}
    lines = [line(10 * at, 1, START + 100.0 * at, ranks=4 if at > 6 else 2, window_train_seconds=seconds.get(10 * at, 10.0)) for at in range(1, 11)]
    lines = [each | {"phases": {"checkpoint": 1.0}} for each in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    events = [{"event": "checkpoint", "attempt": 1, "update": 5 * at, "time": START + 50.0 * at + 3.0} for at in range(1, 21)]
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    stall_s, write_s = save_seconds(read_run(folder))
    # 19 saves on the way in ten lines with a second of saving each; when those of updates 5, 15, ... were begun no line tells.
    assert (stall_s, write_s) == (pytest.approx(10 / 19), pytest.approx(3.0))
    (speed,) = read_measured((folder,))
    # Thirds of the four: (400, 400), 200, 400 tokens/s.
    assert speed.ranks == 4 and speed.spread == pytest.approx(200 / (2 * 1000 / 3))
    (folder / "events.jsonl").write_text(json.dumps(events[0]) + "\n")
    assert save_seconds(read_run(folder)) == (pytest.approx(10.0), None)


def test_the_speed_of_a_pilot_is_read(tmp_path):
    folder = made_run(tmp_path / "pilot")
    (folder / "pilot.json").write_text(json.dumps({"accelerator": "h100-80", "measured": {"tokens_per_s": 5000.0}}))
    (speed,) = read_measured((folder / "pilot.json",))
    assert (speed.ranks, speed.anchor.tokens_per_s, speed.start_s) == (2, 5000.0, 40) and read_measured((folder,)) == [speed]
    (folder / "pilot.json").write_text("{")
    with pytest.raises(CheckpointError, match="pilot"):
        read_measured((folder / "pilot.json",))


def test_a_run_that_has_not_begun_costs_nothing(tmp_path):
    folder = made_run(tmp_path / "new")
    for name in ("metrics.jsonl", "events.jsonl"):
        (folder / name).unlink()
    text = render_report(report_run(folder, gain=None, price=None, currency=None, now=START))
    assert "no update is logged yet" in text and "0.00 EUR" in text and "the rest" not in text


def test_speeds_of_a_scaling_test_are_read(tmp_path):
    points = tuple(
        ScalePoint(name=f"r{ranks}", ranks=ranks, stage=2, hosts={"h": ranks}, state="measured", tokens_per_s=speed, spread=0.1, tokens=speed)
        for ranks, speed in ((1, 100.0), (2, 190.0))
    )
    result = ScaleResult(spec="s", model="owner/model", mode="strong", precision="bf16", warm_up=1, windows=2, updates=4, points=points)
    ScaleDir(tmp_path).result.write_text(result.to_json())
    assert [(speed.ranks, speed.anchor.tokens_per_s, speed.spread) for speed in read_measured((tmp_path,))] == [(1, 100.0, 0.05), (2, 190.0, 0.05)]
    made_run(ScaleDir(tmp_path).point("r2"))
    assert [speed.start_s for speed in read_measured((tmp_path / "scale.json",))] == [None, 40]
    weak = ScaleDir(tmp_path).result.read_text().replace('"strong"', '"weak"')
    ScaleDir(tmp_path).result.write_text(weak)
    assert [speed.ranks for speed in read_measured((tmp_path / "scale.json",))] == [1]
    other = tuple(dataclasses.replace(each, stage=3) for each in points)
    ScaleDir(tmp_path).result.write_text(dataclasses.replace(result, mode="weak", points=(*points, *other)).to_json())
    assert [(speed.ranks, speed.stage) for speed in read_measured((tmp_path,))] == [(1, 2), (1, 3)]
