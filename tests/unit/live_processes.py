"""What the tests of the launcher need to start real processes and to see that none is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 45.0
"""What ends by itself, or is ended at once, has ended by then on a busy machine too; what waits for a farewell (60 s) or for a script's own end has not."""
SLEEP = "\ntime.sleep(600)\n"
"""For scripts that don't end unless they are ended."""

PRELUDE = """
import json, os, signal, subprocess, sys, time
RANK, PIDS = int(os.environ.get("RANK", "0")), PIDS_FOLDER

def note_pid(pid, name):
    open(os.path.join(PIDS, f"{name}.{pid}"), "w").close()

def wait_for(count):
    while len(os.listdir(PIDS)) < count:
        time.sleep(0.01)

def be_ready():
    # As a rank that takes its signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.write(int(os.environ["FTLAUNCH_EVENTS_FD"]), json.dumps(dict(event="ready", rank=RANK)).encode() + b"\\n")

note_pid(os.getpid(), f"rank{RANK}")
"""


def write_script(folder: Path, body: str, name: str = "rank.py") -> Path:
    """A script that notes its pid in `folder/pids` and then runs `body`."""
    pids = folder / "pids"
    pids.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(PRELUDE.replace("PIDS_FOLDER", repr(str(pids))) + textwrap.dedent(body))
    return path


def noted(folder: Path) -> list[int]:
    """The pids that scripts have noted."""
    pids = folder / "pids"
    return [int(entry.name.rpartition(".")[2]) for entry in pids.iterdir()] if pids.is_dir() else []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def alive(folder: Path) -> list[int]:
    """The noted pids that still run."""
    return [pid for pid in noted(folder) if is_alive(pid)]


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Raises AssertionError when the condition has not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def environment(**more: str) -> dict[str, str]:
    """An environment in which the project is importable, without variables of another launch."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FTLAUNCH_", "MASTER_", "OMP_")) and name != "RANK"}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def node_arguments(run: Path, ranks: int, command: list[str], *more: str) -> list[str]:
    """argv of a supervisor for one host."""
    return [
        *(sys.executable, "-m", "launcher.node", "--run-dir", str(run), "--node-rank", "0", "--nodes", "1"),
        *("--local-ranks", str(ranks), "--first-rank", "0", "--world-size", str(ranks), *more, "--", *command),
    ]


def run_node(run: Path, ranks: int, script: Path, *more: str, env: dict[str, str] | None = None) -> tuple[int, list[dict[str, Any]], float]:
    """Runs a supervisor to its end: exit status, events, seconds."""
    read_handle, write_handle = os.pipe()
    began = time.monotonic()
    process = subprocess.Popen(
        node_arguments(run, ranks, [sys.executable, str(script)], *more),
        env=environment(FTLAUNCH_EVENTS_FD=str(write_handle), **(env or {})),
        pass_fds=(write_handle,),
        cwd=ROOT,
    )
    os.close(write_handle)
    with open(read_handle, encoding="utf-8") as events:
        status = process.wait(timeout=120)
        seconds = time.monotonic() - began
        return status, [json.loads(line) for line in events], seconds
