"""`ftlaunch scale` with real ranks: interrupted, gone on with, and what it leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launcher.scaling import result as result_module
from tests.e2e.conftest import LIMIT_S, Cli
from tests.unit.live_processes import wait_until

SMALL = ("--windows", "2", "--window-updates", "1", "--warm-up", "1", "batch.global_batch_size=4")
SCHEMA = Path(result_module.__file__).with_name("scale.schema.json")


# L06: tokens and supervised tokens are told apart.
def test_points_are_measured_kept_and_agree(cli: Cli) -> None:
    folder = cli.folder / "scale"

    def states() -> list[str]:
        file = folder / "scale.json"
        return [each["state"] for each in json.loads(file.read_text())["points"]] if file.is_file() else []

    with cli.start("scale", "-o", "scale", "--ranks", "1,2", *SMALL) as process:
        second = folder / "points" / "w2-zero2" / "resolved.json"
        wait_until(lambda: (states()[:1] == ["measured"] and second.is_file()) or process.poll() is not None, LIMIT_S)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130 and states() == ["measured", "waiting"]
    done = cli.run("scale", "scale")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rank in stage 2: measured already" in done.stdout and done.stdout.count("world size:") == 1
    assert "losses: agree" in done.stdout and "page: scale/scale.html" in done.stdout
    result = json.loads((folder / "scale.json").read_text())
    assert not list(jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(result))
    assert result["agreement"]["passed"] and result["agreement"]["largest_loss_gap"] <= 1e-5
    for point in result["points"]:
        add_up(point)
    assert [point["ideal_speedup"] for point in result["points"]] == [1.0, 2.0]
    assert not list(folder.glob("points/*/checkpoints")) and not list(folder.glob("points/*/model"))
    assert "<svg" in (folder / "scale.html").read_text()


def add_up(point: dict[str, Any]) -> None:
    """A measured point's numbers are of one another."""
    assert sum(point["phases"].values()) == pytest.approx(point["update_seconds"], rel=0.02)
    assert point["supervised_tokens"] < point["tokens"] and point["tokens_per_s"] == pytest.approx(point["tokens"] / point["update_seconds"])
    assert point["supervised_tokens_per_s_per_rank"] * point["ranks"] == pytest.approx(point["supervised_tokens_per_s"])
    assert point["device_minutes"] == pytest.approx(point["run_updates"] * point["update_seconds"] / 60 * point["devices"])
    assert point["threads"] == 1 and point["limiting"] and len(point["losses"]) == 3
