"""How every process of a run ends: honest exit status, an error the launcher can print, and no hang at exit."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ftcore.out_of_memory import describe_out_of_memory, out_of_memory_facts
from ftcore.spec.disk_errors import REMEDIES, disk_errno
from ftcore.spec.errors import PREEMPTED, CheckpointError, FtError, PreemptedError, StopSignalError
from ftcore.spec.events import attempt, emit
from ftcore.spec.lost_peer import names_a_lost_peer
from ftcore.spec.run_dir import RunDir, write_atomic

TRACEBACK_LINES = 30
"""Last lines of a traceback that are reported; the whole is in the log."""
OUR_BUG = 1


def run_main(main: Callable[[RunDir], None], run_dir: RunDir) -> NoReturn:
    """Runs `main` and ends the process, with status 0, the FtError's own, or 1 for anything else. A stop that was asked for is no error.

    Leaves with os._exit after flushing: at interpreter exit gloo's threads can abort a process that did its work.
    """
    status = 0
    try:
        main(run_dir)
    except (PreemptedError, StopSignalError) as stopped:
        status = PREEMPTED
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{stopped}\n")
    except BaseException as error:  # noqa: BLE001  whatever it was, the launcher must hear of it
        status = report(error, run_dir)
        # The log may lie on the disk whose being full is the error.
        with contextlib.suppress(OSError):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def report(error: BaseException, run_dir: RunDir) -> int:
    """Tells the launcher, and for a rank writes its error file. Returns the exit status."""
    known = as_ft_error(error)
    status = known.exit_status if known is not None else OUR_BUG
    described = known.to_dict() if known is not None else FtError(f"{type(error).__name__}: {error}").to_dict()
    # A full disk or a missing permission is the user's to mend: where in our code it was met says nothing.
    is_users = isinstance(error, FtError) or isinstance(known, CheckpointError)
    cause = [] if is_users else traceback.format_exc().rstrip().splitlines()[-TRACEBACK_LINES:]
    rank = os.environ.get("RANK")
    details = {
        **described,
        "exit_status": status,
        "rank": int(rank) if rank is not None else None,
        "host": socket.gethostname(),
        "lost_peer": is_lost_peer(error),
        "time": time.time(),
        **({"memory": memory} if (memory := _memory(error)) else {}),
    }
    # First the event, which needs no disk.
    emit("error", **details, traceback=_fit("\n".join(cause)))
    if rank is not None:
        with contextlib.suppress(OSError):
            write_atomic(run_dir.rank_error(attempt(), int(rank)), json.dumps({**details, "traceback": "\n".join(cause)}, indent=1))
    return status


def _memory(error: BaseException) -> dict[str, Any]:
    """The numbers of memory that ran out. What fails here must not hide the error itself."""
    with contextlib.suppress(Exception):
        return out_of_memory_facts(error)
    return {}


def _fit(text: str) -> str:
    """The end of `text`, short enough for one event."""
    return text[-2000:]


def as_ft_error(error: BaseException) -> FtError | None:
    """The error as one of ours when it is something a user can act on, else None."""
    if isinstance(error, FtError):
        return error
    name = type(error).__name__
    if (out_of_memory := describe_out_of_memory(error)) is not None:
        return out_of_memory
    if name == "ModuleNotFoundError":
        return FtError(str(error), fix="make install")
    number = disk_errno(error)
    if number is not None:
        file = getattr(error, "filename", None)
        fix = f"{REMEDIES[number]}, then go on with --resume"
        return CheckpointError(str(error), where=str(file) if file else "the run's files", fix=fix)
    return None


def is_lost_peer(error: BaseException) -> bool:
    """Whether the failure is only that another rank went away."""
    return isinstance(error, RuntimeError) and names_a_lost_peer(str(error))


def run_dir_argument(arguments: list[str]) -> RunDir:
    """The run folder from the command line of a process that the launcher starts: its first argument."""
    return RunDir(Path(arguments[0]).resolve())
