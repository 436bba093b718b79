"""Commands that are run on a host beside what already runs there: signals to supervisors that take no orders, and the last look at a host."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping
from typing import IO

from launcher.children import starting
from launcher.processes import LAUNCH_ID, child_setup, signal_group


def call(argv: tuple[str, ...], environment: Mapping[str, str], what: str, log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Starts `argv`, whose output goes to `log`; nobody waits for it here. Raises ClusterError, which says `what`, when it can't be started."""
    output = log if log is not None else subprocess.DEVNULL
    with starting(what):
        return subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=child_setup(signal.SIGKILL),  # noqa: PLW1509  this process has one thread
        )


def end_calls(callers: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ends those that still run; each is waited for."""
    for caller in callers:
        signal_group(caller.pid, signal.SIGKILL)
        caller.wait()


def signal_command(pids: Iterable[int], name: str, launch_id: str) -> str:
    """Shell text that signals processes of the launch. A number may be given anew: only what carries the launch's mark is meant."""
    mark = shlex.quote(f"{LAUNCH_ID}={launch_id}")
    return "; ".join(f"grep -qzFx {mark} /proc/{pid}/environ && kill -{name} {pid}" for pid in pids)
