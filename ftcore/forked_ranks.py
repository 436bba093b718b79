"""A host's ranks as forks of one process that imports once: `python -m ftcore.forked_ranks FIRST_RANK LOGS PIDS MODULE RUN`.

The node's supervisor starts it and inherits the ranks when it ends, which it does once all are forked. They wait for that, so that
each is the supervisor's own child before it does anything; when this process ends in any other way, none of them begins.
LOGS are descriptors, one a rank, with commas between; PIDS is the descriptor that the ranks' pids are told on.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ftcore.process import run_dir_argument, run_main
from ftcore.spec.parentage import die_with_parent
from ftcore.spec.run_dir import RunDir

_GO = b"."
_POLL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line."""

    first_rank: int
    """Global rank of local rank 0."""
    logs: tuple[int, ...]
    pids: int
    module: str
    """Has a `main(RunDir)`."""
    folder: str
    supervisor: int
    """Its pid."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Imports, forks and ends. An error is reported like any process's of a run; it is no rank's."""
    first_rank, logs, pids, module, folder = arguments
    request = Request(
        first_rank=int(first_rank),
        logs=tuple(int(handle) for handle in logs.split(",")),
        pids=int(pids),
        module=module,
        folder=folder,
        supervisor=os.getppid(),
    )
    run_main(lambda run_dir: _fork_ranks(request, run_dir), run_dir_argument([folder]))


def _fork_ranks(request: Request, run_dir: RunDir) -> None:
    rank_main: Callable[[RunDir], None] = importlib.import_module(request.module).main
    starter, fit = os.getpid(), can_be_forked()
    # What is imported is never freed: a collection that looked at it would copy its pages in every rank.
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    gate, opener = os.pipe()
    pids = []
    for local_rank in range(len(request.logs)):
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            _enter_rank(request, local_rank)
            _await_adoption(gate, starter, request.supervisor)
            if not fit:
                os.execv(sys.executable, [sys.executable, "-m", request.module, request.folder])
            # Python does this for `random` by itself.
            np.random.seed()
            run_main(rank_main, run_dir)
        pids.append(pid)
    os.write(request.pids, " ".join(map(str, pids)).encode())
    os.write(opener, _GO * len(pids))


def can_be_forked() -> bool:
    """Whether what was imported works in a fork: it started no thread of Python's and did not touch CUDA.

    Threads of OpenBLAS and of Arrow's allocator may be there: both stop or forget theirs in a fork.
    """
    torch = sys.modules.get("torch")
    return threading.active_count() == 1 and not (torch is not None and torch.cuda.is_initialized())


def _enter_rank(request: Request, local_rank: int) -> None:
    """Session, environment and output of the rank."""
    os.setsid()
    os.environ.update({"RANK": str(request.first_rank + local_rank), "LOCAL_RANK": str(local_rank)})
    for target in (1, 2):
        os.dup2(request.logs[local_rank], target)
    for handle in (*request.logs, request.pids):
        os.close(handle)
    sys.argv = [request.module, request.folder]


def _await_adoption(gate: int, starter: int, supervisor: int) -> None:
    """Returns once this process is the supervisor's child and would die with it; ends the process when that is not to be."""
    went_well = os.read(gate, 1) == _GO
    os.close(gate)
    while os.getppid() == starter:
        time.sleep(_POLL_S)
    die_with_parent(signal.SIGKILL)
    if not went_well or os.getppid() != supervisor:
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
