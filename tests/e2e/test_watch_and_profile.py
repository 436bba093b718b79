"""A real profile of two ranks, watched in a real terminal while it trains: tmux shows the view, `q` ends it, and the run goes on to its summary."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

LIMIT_S = 300.0
SPEC = ("batch.global_batch_size=4", "data.eval=null", "logging.log_samples=false")


class Terminal:
    """A terminal of 80x24 with a shell, of a tmux server of its own."""

    def __init__(self, cli: Cli) -> None:
        self._socket = str(cli.folder / "tmux.sock")
        environment = {**cli.environment, "PS1": "$ ", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        self._environment = environment
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", str(cli.folder), "sh")

    def _tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def until(self, is_shown: Callable[[str], bool]) -> str:
        """The first screen of which that is true; raises AssertionError when none comes."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if is_shown(seen := self.screen()):
                return seen
            time.sleep(0.1)
        raise AssertionError(self.screen())

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        assert "FTLAUNCH_REQUIRE_SHARED" not in os.environ, "tmux is missing"
        pytest.skip("tmux is missing")
    made = Terminal(cli)
    yield made
    made.close()


def test_a_profile_is_watched_and_summed_up(cli: Cli, terminal: Terminal) -> None:
    (cli.folder / "hosts").write_text("localhost slots=2\n")
    options = ("--hosts", "hosts", "-o", "prof", "--updates", "3", "--warmup", "100", "--memory")
    with (cli.folder / "profile.txt").open("wb") as told:
        process = subprocess.Popen([cli.program, "profile", *options, *SPEC], cwd=cli.folder, env=cli.environment, stdout=told, stderr=told)
    try:
        watched_and_left(cli, terminal)
        # The run never noticed.
        assert process.wait(LIMIT_S) == 0, (cli.folder / "profile.txt").read_text()
    finally:
        process.kill()
        process.wait()
    text = (cli.folder / "profile.txt").read_text()
    assert "profiled: updates 101 to 103, 2 ranks, CPU" in text and "where the time goes" in text and "what to do" in text
    assert not (cli.folder / "prof" / "checkpoints").exists()
    sums_add_up(cli.folder / "prof")
    terminal.keys(f"{cli.program} watch prof", "Enter")
    assert "finished" in terminal.until(lambda seen: "attempt 1 ended: done" in seen)


def watched_and_left(cli: Cli, terminal: Terminal) -> None:
    """In a terminal of two sizes, left with q and with Ctrl-C: the terminal is as it was each time."""
    resolved = cli.folder / "prof" / "resolved.json"
    terminal.until(lambda _: resolved.exists())
    terminal.keys("stty -g > before", "Enter")
    terminal.keys(f"{cli.program} watch prof --interval 0.3; echo left with $?; stty -g > after", "Enter")
    seen = terminal.until(lambda seen: "ETA" in seen and "rank 1 " in seen)
    wanted = ("running", "/103", "ETA", "loss", "lr ", "grad norm", "supervised tokens/s", "memory", "rank 0 FF", "BBBB", "q or Ctrl-C leaves")
    assert [text for text in wanted if text not in seen] == [], seen
    terminal.resize(40, 12)
    seen = terminal.until(lambda seen: "2 ranks FF" in seen)
    assert "running" in seen and "q or Ctrl-C leaves" in seen and max(map(len, seen.splitlines())) <= 40
    terminal.resize(80, 24)
    terminal.keys("q")
    terminal.until(lambda seen: "left with 0" in seen)
    terminal.keys("clear; cmp before after && echo unchanged", "Enter")
    terminal.until(lambda seen: "unchanged" in seen.replace("echo unchanged", ""))
    terminal.keys(f"clear; {cli.program} watch prof; echo left with $?", "Enter")
    terminal.until(lambda seen: "q or Ctrl-C leaves" in seen)
    terminal.keys("C-c")
    terminal.until(lambda seen: "left with 0" in seen.replace("echo left with $?", ""))


def sums_add_up(run: Path) -> None:
    """Of real traces: the parts are the window, in the whole, by phase and by rank; the phases are those that the run itself measured."""
    summary = json.loads((run / "profile" / "summary.json").read_text())
    assert summary["updates"] == [101, 102, 103] and summary["device"] == "cpu" and not summary["problems"]
    assert sum(summary["parts"].values()) == pytest.approx(summary["wall_s"], rel=0.001)
    assert sum(each["wall_s"] for each in summary["phases"].values()) == pytest.approx(summary["wall_s"], rel=0.001)
    assert {"forward", "backward", "optimizer"} <= summary["phases"].keys() and summary["shares"]["compute"] > 0.2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = [sum(line[name] for line in lines if line["update"] in summary["updates"]) for name in ("seconds", "phase_seconds")]
    # An update of the summary has beside its own seconds what lies between two of them, as that from log to log has.
    assert 0.75 * min(measured) < summary["wall_s"] < 1.25 * max(measured)
    for each in summary["ranks"]:
        assert sum(each["parts"].values()) == pytest.approx(each["wall_s"], rel=0.001)
        assert each["communication"]["total_s"] > 0 and each["communication"]["waiting_s"] is not None and each["memory"]["cpu"]["peak_bytes"] > 0
        with gzip.open(run / "profile" / each["traces"][0], "rt") as file:
            names = [event.get("name") for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"]
        assert [name for name in names if name.startswith("ftlaunch: update")] == ["ftlaunch: update 101", "ftlaunch: update 102", "ftlaunch: update 103"]
        assert names.count("ftlaunch: forward") >= 3 and names.count("ftlaunch: backward") >= 3
    assert "aten::mm" in [each["name"] for each in summary["operators"][:3]] and (run / "profile" / "summary.html").stat().st_size > 10_000
