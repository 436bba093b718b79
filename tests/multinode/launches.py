"""Runs of the small embedded model on the hosts of a cluster, started by the real command line, and what is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.run_dir import RunDir
from tests.cluster.hosts import Cluster
from tests.own_time import OwnTime
from tests.unit.live_processes import wait_until

LIMIT_S = 300.0
"""Of one run."""
END_LIMIT_S = 10.0
"""From a failure until the launcher has ended and nothing is left on any host, in the machine's own time."""
FTLAUNCH = str(Path(sys.executable).with_name("ftlaunch"))
SMALL = ("--zero", "3", "--no-export", "--no-report", "data.eval=null")
LONG = ("train.max_steps=100000", "checkpoint.save_steps=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A launch that has ended."""

    status: int
    text: str
    """What it printed."""
    seconds: float
    """Of the machine's own time, until it ended and nothing was left on any host."""


class Launching:
    """One launch that is under way."""

    def __init__(self, cluster: Cluster, process: subprocess.Popen[bytes], run_dir: RunDir, output: Path) -> None:
        self.cluster, self.process, self.run_dir, self.output = cluster, process, run_dir, output

    def wait_for_update(self, number: int) -> None:
        """Waits until so many updates are done. Raises AssertionError when the launch ends before."""
        self.wait_for(lambda: len(updates(self.run_dir)) >= number)

    def wait_for(self, condition: Any) -> None:
        """Waits for something to come true while the launch runs."""

        def is_true() -> bool:
            met = bool(condition())
            assert met or self.process.poll() is None, f"ended with status {self.process.returncode}\n{self.output.read_text()}"
            return met

        wait_until(is_true, LIMIT_S)

    def rank_pid(self, host: str) -> int:
        """The pid of the one rank on a host, as this machine counts."""
        (pid,) = (pid for pid, command in self.cluster.processes(host).items() if "-m ftcore.run" in command and "launcher.node" not in command)
        return pid

    def ended(self, limit_s: float = LIMIT_S, *, cut: str = "") -> Done:
        """Waits for the end of the launcher and of everything on the hosts. Raises AssertionError when that takes `limit_s` of its own time.

        `cut`: a host whose sshd can't know that its connection is gone, and keeps it.
        """
        with OwnTime() as own:
            status = self.status(own, limit_s)
            while left := [(host, command) for host, command in self.cluster.everything() if not (host == cut and command.startswith("sshd:"))]:
                assert own.seconds < limit_s, f"left on hosts: {left}"
                time.sleep(0.02)
            return Done(status=status, text=self.output.read_text(), seconds=own.seconds)

    def status(self, own: OwnTime, limit_s: float) -> int:
        """The launcher's exit status. Raises AssertionError when it has not ended by `limit_s` of that time."""
        while (status := self.process.poll()) is None:
            assert own.seconds < limit_s, f"the launcher is still there after {limit_s:g} s\n{self.output.read_text()}\n{self.cluster.everything()}"
            time.sleep(0.01)
        return status


class Launcher:
    """`ftlaunch` in a folder of its own, with a cache that the tests share."""

    def __init__(self, cluster: Cluster, folder: Path, cache: Path) -> None:
        self.cluster, self.folder, self.cache = cluster, folder, cache
        self.environment = {**os.environ, **cluster.environment, "FTLAUNCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        self._started: list[subprocess.Popen[bytes]] = []

    def hostfile(self, *, slots: int = 1, words: dict[str, str] | None = None) -> Path:
        """A hostfile of all hosts; `words` by host stand behind its slots."""
        path = self.folder / "hostfile"
        path.write_text("".join(f"{name} slots={slots} {(words or {}).get(name, '')}\n" for name in self.cluster.names))
        return path

    def start(self, name: str, *arguments: str, hosts: Path | None = None, environment: dict[str, str] | None = None, samples: int = 4) -> Launching:
        """Starts a run of the small model in FOLDER/name."""
        run_dir = RunDir(self.folder / name)
        where = ("--hosts", str(hosts)) if hosts is not None else ()
        return self._start(run_dir, [*where, *SMALL, f"batch.global_batch_size={samples}", *arguments, "-o", str(run_dir.path)], environment or {})

    def resume(self, run_dir: RunDir, *arguments: str) -> Launching:
        """Goes on with a run."""
        return self._start(run_dir, ["--resume", str(run_dir.path), "--no-export", "--no-report", *arguments], {})

    def _start(self, run_dir: RunDir, arguments: list[str], environment: dict[str, str]) -> Launching:
        output = self.folder / f"{run_dir.path.name}.txt"
        with output.open("ab") as file:
            process = subprocess.Popen([FTLAUNCH, *arguments], cwd=self.folder, env={**self.environment, **environment}, stdout=file, stderr=subprocess.STDOUT)
        self._started.append(process)
        return Launching(self.cluster, process, run_dir, output)

    def run(self, name: str, *arguments: str, hosts: Path | None = None, environment: dict[str, str] | None = None) -> tuple[Done, RunDir]:
        """Runs to the end, which must be a good one."""
        launching = self.start(name, *arguments, hosts=hosts, environment=environment)
        done = launching.ended()
        assert done.status == 0, done.text
        return done, launching.run_dir

    def close(self) -> None:
        """Ends what a failed test has left running here."""
        for process in self._started:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGKILL)
            process.wait()


def updates(run_dir: RunDir) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl so far."""
    return list(read_lines(run_dir.metrics))


def events(run_dir: RunDir, name: str) -> list[dict[str, Any]]:
    """The run's events of one name."""
    return [event for event in read_lines(run_dir.events) if event["event"] == name]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file of JSON objects; none when it is not there."""
    with contextlib.suppress(FileNotFoundError):
        yield from (json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))


def checkpoints(run_dir: RunDir) -> list[str]:
    """Names of the checkpoints that count, oldest first."""
    return sorted(path.parent.name for path in run_dir.checkpoints.glob("update_*/manifest.json"))


def write_sitecustomize(folder: Path, body: str) -> Path:
    """A folder for PYTHONPATH: Python runs `body` in every process that finds it there, before anything else."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(body)
    return folder
