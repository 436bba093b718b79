"""JSON objects, one a line, over descriptors and in files. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

MOST_BYTES = 1 << 20
"""Read at once: what a rank writes to the wrong descriptor must not keep its supervisor from its orders. Longer lines are no events."""

Message = dict[str, Any]


def json_object(text: str | bytes) -> Message | None:
    """The JSON object in `text`; None for anything else, however it is broken."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class LineReader:
    """Cuts the bytes of a descriptor, made non-blocking, into lines and JSON objects."""

    def __init__(self, handle: int, most_bytes: float = MOST_BYTES) -> None:
        """`most_bytes`: taken at once, and kept of a line; math.inf where whoever writes is trusted."""
        os.set_blocking(handle, False)
        self.handle = handle
        self.is_open = True
        """False once all writers have gone."""
        self._most_bytes = most_bytes
        self._rest = b""

    def read(self) -> list[Message]:
        """The JSON objects in the whole lines that have arrived; what is none is passed over."""
        return [message for line in self.lines() if (message := json_object(line)) is not None]

    def lines(self) -> list[bytes]:
        """The whole lines that have arrived."""
        lines: list[bytes] = []
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < self._most_bytes:
                chunk = self._chunk()
                if not chunk:
                    self.is_open = False
                    break
                taken += len(chunk)
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                lines += whole
                if len(self._rest) > self._most_bytes:
                    # What follows of it is no JSON either.
                    self._rest = b""
        return lines

    def _chunk(self) -> bytes:
        try:
            return os.read(self.handle, 1 << 16)
        except BlockingIOError:
            raise
        except OSError:
            # A connection that was reset has ended, too.
            return b""


class LineWriter:
    """Writes JSON lines to a descriptor, made non-blocking, and keeps what it does not take yet."""

    def __init__(self, handle: int) -> None:
        os.set_blocking(handle, False)
        self.handle = handle
        self.is_open = True
        """False once nobody reads any more."""
        self.pending = b""

    def send(self, message: Message) -> None:
        """Queues one line and writes what can be written."""
        if self.is_open:
            self.pending += json.dumps(message).encode() + b"\n"
            self.flush()

    def flush(self) -> None:
        """Writes as much of the queue as the descriptor takes."""
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.handle, self.pending) :]
        except BlockingIOError:
            return
        except OSError:
            self.is_open, self.pending = False, b""

    def drain(self, limit_s: float) -> None:
        """Waits until all is written, or nobody reads, or the time is over."""
        end = time.monotonic() + limit_s
        while self.pending and time.monotonic() < end:
            self.flush()
            time.sleep(0.005)
