"""A real run of two ranks on this machine: looked at, followed, ended with a save and without one, and gone on with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.conftest import LIMIT_S, TINY, Cli
from tests.unit.live_processes import wait_until

LONG = ("--set", "train.max_steps=4000", "--no-export", "--set", "checkpoint.save_steps=0")


def status(cli: Cli) -> dict[str, Any]:
    """`ftlaunch status --json run`."""
    found: dict[str, Any] = json.loads(cli.run("status", "run", "--json").stdout)
    return found


def wait_for_update(folder: Path, update: int) -> None:
    """Until so many updates are logged."""
    metrics = folder / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= update, LIMIT_S)


def test_a_run_from_outside(cli: Cli) -> None:
    first = cli.start(*TINY, *LONG, "-o", "run")
    wait_for_update(cli.folder, 2)
    seen = status(cli)
    assert (seen["state"], seen["attempt"], seen["launcher_alive"], seen["total_updates"]) == ("running", 1, True, 4000)
    assert seen["update"] >= 2 and seen["seconds_left"] > 0 and seen["tokens_per_s"] > 0
    follows = subprocess.Popen([cli.program, "logs", "-f", "--all", "run"], cwd=cli.folder, env=cli.environment, stdout=subprocess.PIPE, text=True)
    ended = cli.run("cancel", "--save", "run")
    assert ended.returncode == 0, ended.stderr
    assert first.wait(LIMIT_S) == 75
    text, _ = follows.communicate(timeout=LIMIT_S)
    assert follows.returncode == 0 and all(" | " in line for line in text.splitlines())
    seen = status(cli)
    assert seen["state"] == "preempted" and seen["checkpoint_update"] == seen["update"] and seen["launcher"] == ""

    again = cli.start("--resume", "run")
    wait_for_update(cli.folder, seen["update"] + 2)
    ended = cli.run("cancel", "run")
    assert ended.returncode == 0 and "ftlaunch --resume run" in ended.stdout
    assert again.wait(LIMIT_S) == 130
    seen = status(cli)
    assert (seen["state"], seen["attempt"]) == ("stopped", 2)
