"""A process that works on chunks: `python -m ftcore.data.worker DESCRIPTOR [MODULE...]`, started by ftcore.data.workers."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ftcore.spec.errors import FtError


def main(descriptor: int, hidden: Sequence[str]) -> None:
    """Takes what makes the work, then numbered chunks; gives back (number, result or what was raised). Leaves when the other end is closed.

    `hidden`: modules that the work must not find.
    """
    # Whoever started this process is told of Ctrl-C too, and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    connection = Connection(descriptor)
    chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A thread of its own: whoever sends a chunk must not wait for the result of the one before.
    threading.Thread(target=_take, args=(connection, chunks), daemon=True).start()
    make, do = chunks.get(), None
    while True:
        number, chunk = chunks.get()
        try:
            do = do or make()
            result = do(chunk)
        except Exception as error:  # noqa: BLE001  whatever it was, the process that asked raises it
            if not isinstance(error, FtError):
                error.add_note(traceback.format_exc())
            result = error
        connection.send((number, result))


def _take(connection: Connection, chunks: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            chunks.put(connection.recv())
    except (OSError, EOFError):
        os._exit(0)
    except BaseException:  # noqa: BLE001  a thread that ends would leave the process waiting for ever
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
