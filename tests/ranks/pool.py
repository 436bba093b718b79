"""Ranks for tests: forked from one server that has imported torch, deepspeed, transformers and peft, so that each costs milliseconds."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

TIMEOUT_S = 240.0


class RankPool:
    """Runs module-level functions `function(rank, world_size, *arguments)` on W ranks that could form a process group."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["ftcore.run", "ftcore.export"])

    def run(self, function: Callable[..., Any], world_size: int, *arguments: Any, logs: Path) -> list[Any]:
        """Each rank's return value. A rank's failure raises AssertionError with its traceback and the end of its log."""
        logs.mkdir(parents=True, exist_ok=True)
        with kept_port() as port:
            started = [self._start(function, rank, world_size, port, arguments, logs / f"rank_{rank}.log") for rank in range(world_size)]
            try:
                return _collect(started, logs)
            finally:
                for process, _ in started:
                    if process.is_alive():
                        process.kill()
                    process.join()

    def _start(self, function: Callable[..., Any], rank: int, world_size: int, port: int, arguments: tuple[Any, ...], log: Path) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_rank_main, args=(function, rank, world_size, port, arguments, theirs, str(log)), daemon=True)
        process.start()
        theirs.close()
        return process, ours


@contextmanager
def kept_port() -> Iterator[int]:
    """A port of this machine for the ranks' first one to listen on, which the kernel gives to nobody else meanwhile.

    A socket that is bound and does not listen keeps it: who asks for this port and lets it be shared, as torch's store does, gets it; who asks for any doesn't.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("", 0))
        yield int(keeper.getsockname()[1])


def _collect(started: list[tuple[Any, Connection]], logs: Path) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + TIMEOUT_S
    waiting = {connection: rank for rank, (_, connection) in enumerate(started)}
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"ranks {sorted(waiting.values())} did not finish in {TIMEOUT_S} s{_tails(logs)}")
        for connection in ready:
            rank = waiting.pop(connection)  # type: ignore[arg-type]
            try:
                outcome, value = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                raise AssertionError(f"rank {rank} died without a word{_tails(logs)}") from None
            if outcome == "error":
                raise AssertionError(f"rank {rank} failed:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(started))]


def _tails(logs: Path) -> str:
    return "".join(f"\n--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(logs.glob("rank_*.log")))


def _rank_main(function: Callable[..., Any], rank: int, world_size: int, port: int, arguments: tuple[Any, ...], results: Connection, log: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    faulthandler.enable(file=sys.__stderr__)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    # Set here alone: a launcher that a test starts from this process would take it for the user's wish.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        outcome = ("value", function(rank, world_size, *arguments))
    except BaseException:  # noqa: BLE001  the test must hear of it, whatever it was
        outcome = ("error", traceback.format_exc())
    # Plain pickle: torch's own pickler for pipes would pass tensors by handles that die with this process.
    results.send_bytes(pickle.dumps(outcome))
    results.close()
    sys.stdout.flush()
    os._exit(0)
