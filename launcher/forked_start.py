"""The start of a host's ranks through `ftcore.forked_ranks`: one process imports, forks them and ends, and they become this process's children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from ftcore.spec.parentage import adopt_orphans
from launcher.processes import PREEMPTING, AdoptedProcess, child_setup

_MOST_BYTES = 65536
"""Of the list of pids; as much as a pipe holds."""


def is_forkable(command: Sequence[str]) -> bool:
    """Whether a rank's argv is `PYTHON -m MODULE RUN`."""
    return len(command) == 4 and command[1] == "-m"


class ForkedStart:
    """The process that imports for the ranks, until it has ended. Its output goes where this process's does."""

    def __init__(self, process: subprocess.Popen[bytes], pids: int) -> None:
        self.process = process
        self._pids = pids
        """Descriptor on which the process tells the ranks' pids."""

    @classmethod
    def begin(cls, command: Sequence[str], environment: Mapping[str, str], first_rank: int, logs: Sequence[BinaryIO], handles: tuple[int, ...]) -> ForkedStart:
        """Starts it, for a rank with each of `logs`; ranks inherit `handles`. Raises OSError when it can't be started."""
        python, _, module, folder = command
        pids, told = os.pipe()
        log_handles = [log.fileno() for log in logs]
        numbers = [str(first_rank), ",".join(map(str, log_handles)), str(told)]
        try:
            adopt_orphans(True)
            process = subprocess.Popen(
                [python, "-m", "ftcore.forked_ranks", *numbers, module, folder],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(*handles, *log_handles, told),
                preexec_fn=child_setup(signal.SIGKILL, blocked=PREEMPTING),  # noqa: PLW1509  this process has one thread
            )
        except BaseException:
            os.close(pids)
            raise
        finally:
            os.close(told)
        return cls(process, pids)

    def finish(self) -> list[AdoptedProcess]:
        """The ranks by local rank, once the process has ended; none when it did not end well."""
        # Orphans of the ranks are init's again.
        adopt_orphans(False)
        with open(self._pids, "rb", buffering=0) as pipe:
            os.set_blocking(self._pids, False)
            text = pipe.read(_MOST_BYTES) or b""
        return [AdoptedProcess(int(pid)) for pid in text.split()] if self.process.returncode == 0 else []
