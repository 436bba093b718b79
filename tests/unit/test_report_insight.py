"""What a run's page says of its forecast, its cost, slow ranks and the doctor's findings."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ftcore.report.blocks import Prose
from ftcore.report.cost import cost
from ftcore.report.doctor import doctor
from ftcore.report.foreseen import band, in_words
from ftcore.report.learning import learning
from ftcore.report.run_view import RunView
from ftcore.report.speed import speed
from ftcore.spec.evaluation_forecast import forecast
from ftcore.spec.run_dir import RunDir
from tests.unit.made_runs import add_lines
from tests.unit.reported_runs import HOSTILE, START, long_run, viewed
from tests.unit.test_report_pages import text_of


def cut(folder: Path, *, updates: int, losses: dict[int, float], total: int = 60) -> Path:
    """A run that stands after so many of its updates, with these evaluations."""
    run_dir = long_run(folder, updates=updates, evaluate=1000)
    lines = [json.loads(line) | {"total_updates": total} for line in run_dir.metrics.read_text().splitlines()]
    run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = [line for line in run_dir.events.read_text().splitlines() if json.loads(line)["event"] not in ("evaluation", "launch_ended")]
    run_dir.events.write_text("\n".join(kept) + "\n")
    add_lines(
        run_dir.events, *({"event": "evaluation", "set": "eval", "update": at, "loss": loss, "time": START + at, "attempt": 1} for at, loss in losses.items())
    )
    return run_dir.path


FALLING = {update: 1.5 + math.exp(-update / 12) for update in range(4, 37, 4)}


def test_a_page_foresees_its_end_and_tells_what_the_doctor_found(tmp_path: Path) -> None:
    path = cut(tmp_path / "run", updates=36, losses=FALLING)
    (path / "findings.json").write_text(json.dumps(found(update=36)))
    (view,) = viewed(path, state="failed")
    foreseen = forecast(view.record)
    assert foreseen is not None and foreseen.final is not None
    text = text_of(view)
    assert "forecast (90% of the curves)" in text
    assert f"Forecast of loss: {foreseen.final.middle:.4f} ({foreseen.final.low:.4f} to {foreseen.final.high:.4f}) after update 60, 90% sure" in text
    assert "still to come 24 updates on 2 ranks: 36 s (36 s to 36 s), 0.04 EUR" in text
    assert text.index("What the doctor found In attempt 1, at update 36 of 60.") < text.index("Losses are per supervised token")
    assert "See also: ftlaunch doctor" not in text


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({10: 2.0, 20: 1.8}, "No forecast: 2 evaluations, 5 are needed"),
        ({10: 2.0, 15: 1.5, 20: 1.8, 25: 2.1, 30: 2.4}, "No forecast: it has risen by 0.9 since update 15"),
        ({10: math.inf}, ""),
        ({}, ""),
    ],
)
def test_why_there_is_no_forecast(tmp_path: Path, losses: dict[int, float], words: str) -> None:
    (view,) = viewed(cut(tmp_path / "run", updates=36, losses=losses), state="running")
    foreseen = forecast(view.record)
    assert in_words(foreseen).startswith(words) and bool(in_words(foreseen)) == bool(words) and band(foreseen, "soft") == ()
    assert words in str(learning(view, foreseen))


def test_a_damaged_spec_leaves_a_forecast(tmp_path: Path) -> None:
    path = cut(tmp_path / "run", updates=36, losses=FALLING)
    whole = forecast(viewed(path)[0].record)
    resolved = json.loads((path / "resolved.json").read_text())
    resolved["spec"]["schedule"] = {"warmup_steps": "x", "warmup_ratio": [1], "lr_scheduler_type": 5, "decay_steps": True, "min_lr_ratio": math.nan}
    (path / "resolved.json").write_text(json.dumps(resolved))
    assert forecast(viewed(path)[0].record) == whole


def test_early_stopping_is_told(tmp_path: Path) -> None:
    (view,) = viewed(cut(tmp_path / "run", updates=36, losses=FALLING), state="running")
    foreseen = forecast(view.record)
    assert foreseen is not None
    told = in_words(dataclasses.replace(foreseen, stop_chance=0.8, stop_update=52.0, gain_update=None, gain=0.00123))
    assert told.endswith("it gains at least 0.0012 an evaluation until then; early stopping ends it before that with a chance of 80%, about after update 52.")
    assert "about after" not in in_words(dataclasses.replace(foreseen, stop_chance=0.2, stop_update=52.0))


def test_lost_work_stands_beside_each_attempt(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=40, attempts=2)
    lost = [{"event": "done_again", "attempt": 2, "trained_by": 1, "updates": 5, "seconds": 7.5, "update": 20, "time": START + 10_020}]
    add_lines(run_dir.events, *lost)
    (view,) = viewed(run_dir.path, state="finished")
    section = cost(view, is_over=True)
    told = str(section)
    assert "down before" in told and "lost cost" in told and "between attempts" in told
    rows = next(block for block in section.blocks if block.kind == "table")
    assert len(rows.rows) == 2 and "still to come" not in told  # type: ignore[union-attr]
    once = cost(viewed(long_run(tmp_path / "once").path, state="finished")[0], is_over=True)
    assert "no update was trained twice" in str(once) and [block.kind for block in once.blocks] == ["facts"]
    assert "EUR, for updates and evaluations alone" in str(cost(planned_for(tmp_path / "once", price=1.25), is_over=True))


def planned_for(path: Path, *, price: float) -> RunView:
    """The run in `path`, with a forecast of so much."""
    RunDir(path).memory_json.write_text(json.dumps({"forecast": {"device_hours": 0.5, "price": price}}))
    return viewed(path, state="finished")[0]


def test_slow_ranks_that_were_named(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=5)
    cause = {"name": "device", "suspected": True, "what": "it takes 1.6 times as long: look at its clocks"}
    facts = {"rank": 1, "host": "node1", "phase": "data_wait", "share": 0.31, "cause": "device"}
    add_lines(run_dir.events, *({"event": "finding", "kind": "slow_rank", "update": at, "what": "slow", "causes": [cause], **facts} for at in range(1, 20)))
    add_lines(run_dir.events, {"event": "finding", "kind": "slow_rank", "update": HOSTILE, "share": "x"})
    told = str(speed(viewed(run_dir.path)[0]))
    assert "Slow ranks that the run named" in told and "waiting for data" in told and "31.0" in told
    assert "look at its clocks" in told and "The last 16 of 20." in told


def found(**changes: Any) -> dict[str, Any]:
    knob = {"options": "--set zero.stage=3", "gives": "1.0 GiB", "costs": "10 % time", "is_enough": True}
    one = {
        "kind": "nan",
        "severity": "ended",
        "what": "update 2 is not finite",
        "causes": ["the rate", "rows"],
        "knobs": [knob],
        "go_on": ["ftlaunch --resume run"],
    }
    return {"schema": 1, "attempt": 1, "update": 60, "total_updates": 60, "findings": [one], **changes}


def test_what_the_doctor_found(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=5)
    (run_dir.path / "findings.json").write_text(json.dumps(found()))
    (view,) = viewed(run_dir.path, state="failed")
    told = str(doctor(view))
    for words in (
        "NaN: update 2 is not finite",
        "'why', 'the rate'",
        "--set zero.stage=3: 1.0 GiB; 10 % time; enough by itself",
        "'go on', 'ftlaunch --resume run'",
    ):
        assert words in told, words
    many = [found()["findings"][0] | {"what": f"number {number}"} for number in range(6)]
    (run_dir.path / "findings.json").write_text(json.dumps(found(findings=many)))
    assert "3 more" in str(doctor(view))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "5",
        json.dumps(found(attempt=2)),
        json.dumps(found(findings=[])),
        json.dumps(found(findings=5)),
        json.dumps(found(findings=[5, {"kind": 5}, {"what": ""}])),
    ],
)
def test_findings_of_another_attempt_or_damaged_ones_are_left_out(tmp_path: Path, text: str) -> None:
    run_dir = long_run(tmp_path / "run", updates=5)
    (run_dir.path / "findings.json").write_text(text)
    assert doctor(viewed(run_dir.path)[0]) is None


def test_odd_findings_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=5)
    odd = {"what": HOSTILE, "knobs": [5, {"options": ""}, {"options": HOSTILE}], "causes": {}, "go_on": [None, 5], "severity": [], "kind": None}
    (run_dir.path / "findings.json").write_text(json.dumps(found(findings=[odd], total_updates=None)))
    section = doctor(viewed(run_dir.path)[0])
    assert section is not None and [block.text for block in section.blocks if isinstance(block, Prose)] == [f"Finding: {HOSTILE}"]
