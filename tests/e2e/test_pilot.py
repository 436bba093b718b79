"""`ftlaunch pilot` with real ranks, and the plan of a run whose data was prepared by it."""

from __future__ import annotations

import json

from tests.e2e.conftest import Cli


def test_a_pilot_is_set_against_the_plan(cli: Cli) -> None:
    done = cli.run("pilot", "-o", "pilot", "--updates", "4", "batch.global_batch_size=4", "hardware.price_per_hour=2", "hardware.accelerator=cpu")
    assert done.returncode == 0, done.stderr
    result = json.loads((cli.folder / "pilot" / "pilot.json").read_text())
    assert result["measured"]["updates"] == 4 and len(result["measured"]["peak_bytes"]) == 2
    # Two ranks that are no more than torch and a model of a few megabytes.
    assert all(2**28 < peak < 2**31 for peak in result["measured"]["peak_bytes"])
    assert 0.4 < max(result["measured"]["peak_bytes"]) / result["expected"]["peak_bytes"] < 2
    assert result["run"]["fits"] and result["run"]["total_s"] > 0 and result["run"]["price"] > 0
    assert "of what was expected" in done.stdout and "it fits" in done.stdout
    assert not (cli.folder / "pilot" / "checkpoints").exists() and not (cli.folder / "pilot" / "model").exists()
    planned = cli.run("plan", "--json", "--gpu", "cpu", "batch.global_batch_size=4")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["forecast"]["lengths"] == "counted when the data was last prepared"
