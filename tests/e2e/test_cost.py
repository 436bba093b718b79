"""`ftlaunch cost` over a spec, over a real run, and over the spec again with the speed of that run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Cli

PRICES = ("--price", "3.6", "--spot-price", "0.9", "--interruptions-per-day", "2", "--currency", "EUR")
UPDATES = 8
FEW_LEFT = 4


def write_rows(folder: Path) -> None:
    """A few short rows to evaluate on, so that each update can be followed by an evaluation."""
    rows = [{"prompt": f"say {number}", "completion": f"this is {number}"} for number in range(6)]
    (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_cost_of_a_spec_and_of_its_run(cli: Cli) -> None:
    write_rows(cli.folder)
    small = (*("batch.global_batch_size=4", "data.eval.path=held.jsonl", "evaluation.eval_steps=1", "cluster.slots=1"), f"train.max_steps={UPDATES}")
    plans = cli.run("cost", *small, *PRICES, "--deadline", "24h")
    assert plans.returncode == 0, plans.stderr
    assert "The cheapest plan that meets 24 h: 1 rank (1 host)" in plans.stdout and " EUR" in plans.stdout and "\n    ftlaunch launch" in plans.stdout

    trained = cli.run("launch", *small, "-o", "run", "--no-export", "--set", "hardware.price_per_hour=3.6", "--set", "hardware.currency=EUR")
    assert trained.returncode == 0, trained.stderr
    cost = cli.run("cost", "run")
    assert cost.returncode == 0, cost.stderr
    assert f"update {UPDATES}/{UPDATES}" in cost.stdout and "EUR a million supervised tokens" in cost.stdout and "all 8 updates are done" in cost.stdout
    facts: dict[str, Any] = json.loads(cli.run("cost", "run", "--json").stdout)
    summed = facts["cost"]["totals"]
    assert summed["cost"] > 0 and abs(summed["cost"] - summed["device_hours"] * 3.6) < 1e-9 and summed["updates"] == UPDATES
    assert abs(summed["cost_per_million_supervised"] - summed["cost"] / summed["supervised_tokens"] * 1e6) < 1e-6
    assert facts["cost"]["rest"] is None and len(facts["forecast"]["points"]) == UPDATES + 1

    measured = cli.run("cost", *small, *PRICES, "--measured", "run", "--ranks", "1,2", "--json")
    assert measured.returncode == 0, measured.stderr
    found = json.loads(measured.stdout)
    assert {plan["origin"] for plan in found["plans"]} == {"measured", "simulated from 1 measured"}
    assert any(note.startswith("start: ") and note.endswith("measured") for note in found["notes"])

    late = cli.run("cost", *small, "--deadline", "1s")
    assert late.returncode == 7 and "No plan meets 1 s. The fastest" in late.stdout and "Traceback" not in late.stderr and "--price" in late.stderr
    forget(cli.folder / "run", keep=FEW_LEFT)
    half = cli.run("cost", "run", "--gain", "0.01")
    assert half.returncode == 0 and f"{UPDATES - FEW_LEFT} updates on 1 rank" in half.stdout and "stop now    saves" in half.stdout


def forget(run: Path, *, keep: int) -> None:
    """The run as it was after so many updates."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:keep]))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    kept = [event for event in events if event["event"] != "launch_ended" and event.get("update", 0) <= keep]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
