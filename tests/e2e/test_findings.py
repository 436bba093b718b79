"""Failures planted into real runs, each by the command line: the report names the doctor, and the doctor finds the cause."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.conftest import LIMIT_S, TINY, Cli
from tests.unit.live_processes import wait_until

RUN = ("--no-export", "--set", "cluster.slots=2", "-o", "run")
ADDRESS_SPACE_KIB = 3_000_000
"""Enough to import and build everything, and too little for the micro-step that is asked for."""


def findings(folder: Path) -> dict[str, Any]:
    """What the launch itself wrote at its end."""
    found: dict[str, Any] = json.loads((folder / "run/findings.json").read_text())
    return found


def doctor(cli: Cli) -> str:
    """`ftlaunch doctor run`."""
    done = cli.run("doctor", "run")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_memory_that_runs_out(cli: Cli) -> None:
    sets = ("batch.global_batch_size=320", "batch.micro_batch_tokens=131072", "data.eval=null", "train.max_steps=2")
    options = [word for text in sets for word in ("--set", text)]
    # Its ledger says beforehand that it may not fit.
    command = ["sh", "-c", f'ulimit -v {ADDRESS_SPACE_KIB} && exec "$@"', "sh", cli.program, *options, "--force", *RUN]
    done = subprocess.run(command, cwd=cli.folder, env=cli.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.splitlines()[-1] == "  to do: ftlaunch doctor run   (also in run/findings.txt)"
    [first, *_] = findings(cli.folder)["findings"]
    assert (first["kind"], first["severity"], first["phase"]) == ("out_of_memory", "ended", "forward")
    assert any("160 samples" in line for line in first["details"]), "the micro-step that the rank computed"
    assert max(first["items"], key=lambda each: each["here_bytes"])["name"] == "activations of layers"
    options = [knob["options"] for knob in first["knobs"]]
    assert options[:2] == ["--set train.gradient_checkpointing=every:2", "--set train.gradient_checkpointing=full"]
    assert "--set batch.micro_batch_tokens=1024" in options[2:]
    assert all(knob["saved_bytes"] > 0 for knob in first["knobs"])
    assert "2.9 GiB the limit" in doctor(cli)
    mended = cli.run("--resume", "run", "--force", "--set", "batch.micro_batch_tokens=2048", "--set", "train.gradient_checkpointing=full", "--dry-run")
    assert mended.returncode == 0, mended.stderr


def test_a_rank_that_stands_still(cli: Cli) -> None:
    process = cli.start(*TINY, "--set", "train.max_steps=4000", "--set", "cluster.stall_timeout=15", *RUN)
    metrics, log = cli.folder / "run/metrics.jsonl", cli.folder / "run/logs/attempt_1/rank_1.log"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 3, LIMIT_S)
    rank = next(pid for pid in below(process.pid) if writes_to(pid, log))
    os.kill(rank, signal.SIGSTOP)
    assert process.wait(LIMIT_S) == 6
    [first, *_] = findings(cli.folder)["findings"]
    assert (first["kind"], first["rank"], first["host"]) == ("hang", 1, first["host"])
    assert "rank 1" in first["what"] and "was stopped by a signal; the other waits for it" in first["what"]
    assert "collective_calls" not in first["what"], "what hears of collectives is not who called one"
    assert f"process {rank}: T (stopped)" in first["evidence"][0]["what"]
    assert first["evidence"][0]["file"] == "logs/attempt_1/stacks/rank_1.txt"
    assert "last progress: " in doctor(cli)


def test_a_learning_rate_that_no_model_stands(cli: Cli) -> None:
    sets = ("optimizer.type=sgd", "optimizer.learning_rate=100", "optimizer.max_grad_norm=0", "schedule.warmup_ratio=0", "train.max_steps=30")
    done = cli.run(*TINY, *(word for text in sets for word in ("--set", text)), *RUN)
    assert done.returncode == 6, done.stderr
    [first, *_] = findings(cli.folder)["findings"]
    lines = (cli.folder / "run/metrics.jsonl").read_text().splitlines()
    assert (first["kind"], first["severity"]) == ("nan", "ended")
    assert first["update"] == json.loads(lines[-1])["update"] + 1, "the update after the last whole one"
    assert first["causes"][0].startswith("likely: the learning rate")
    assert first["knobs"][0]["options"] == "--set optimizer.learning_rate=10"
    assert "NAN: update" in doctor(cli)


def writes_to(pid: int, log: Path) -> bool:
    """Whether this is the standard output of a process; no when it has ended."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/fd/1")) == log
    return False


def below(pid: int) -> list[int]:
    """The processes that `pid` has started, and theirs; none of what ends meanwhile."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (task / "children").read_text().split())
    return [each for child in children for each in (child, *below(child))]
