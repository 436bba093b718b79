"""`ftlaunch verify-loss` as a user runs it: on the embedded spec it passes; Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tests.e2e.conftest import LIMIT_S, Cli

SMALL = ("--quick", "--updates", "2", "--set", "batch.global_batch_size=4", "--set", "data.max_length=700", "--set", "batch.micro_batch_tokens=1400")


def test_it_passes_and_says_how_it_knows(cli: Cli) -> None:
    done = cli.run("verify-loss", *SMALL, "-o", "check", "--json", "copy.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: 5 runs of the same 2 updates agree" in done.stdout and "noise floor (fp32, the reference against w1-zero0-reordered)" in done.stdout
    result = json.loads((cli.folder / "copy.json").read_text())
    assert [split["name"] for split in result["splits"]] == ["w1-zero0", "w1-zero0-reordered", "w2-zero2", "w2-zero3-small", "w1-zero0-then-w2-zero3"]
    assert all(split["updates"][1]["loss"] < split["updates"][0]["loss"] for split in result["splits"])
    assert (cli.folder / "check" / "logs" / "attempt_2" / "rank_1.log").is_file()
    again = cli.run("verify-loss", *SMALL, "-o", "check")
    assert again.returncode == 5 and "already holds a check" in again.stderr


def test_interrupt(cli: Cli) -> None:
    started = cli.start("verify-loss", *SMALL, "-o", "check")
    metrics = cli.folder / "check" / "splits" / "w1-zero0" / "metrics.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=LIMIT_S) == 128 + signal.SIGINT
    assert metrics.exists()
    assert not processes_of(cli.folder / "check")


def processes_of(folder: Path) -> list[str]:
    """Command lines of live processes that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        found += [" ".join(word.decode(errors="replace") for word in words)] if str(folder).encode() in words else []
    return found
