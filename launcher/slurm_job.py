"""`python -m launcher.slurm_job RUN`: what a Slurm job of a run does, from RUN/job.sbatch. It is the launcher: it starts the ranks on the job's nodes by srun.

When the launch has ended, the job may go back into the queue (see launcher.submission.requeueing); each start of it goes on in the same folder.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from launcher.early_warning import EarlyWarningError

# The warning may come as soon as the job runs: before anything else this process takes it.
_WARNINGS = (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM)


class Warnings:
    """Notes signals to this process; while the launch is being prepared, one ends the preparation."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.ends_preparation = False
        for signum in _WARNINGS:
            signal.signal(signum, self._note)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self.seen.add(signum)
        if self.ends_preparation:
            raise EarlyWarningError

    @staticmethod
    def ignore() -> None:
        """From here on signals change nothing, here and in programs that are started: what is left takes a second."""
        for signum in _WARNINGS:
            signal.signal(signum, signal.SIG_IGN)


def main(arguments: list[str]) -> int:
    """Runs one start of a job; returns its exit status."""
    warnings = Warnings()
    from launcher.cli import print_error
    from launcher.submission.job import Start, run_start

    try:
        return run_start(Start.of(arguments[0], os.environ), warnings)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        from ftcore.spec.errors import FtError

        if not isinstance(error, FtError):
            raise
        print_error(error)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
