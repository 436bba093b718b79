"""The supervisor's end of its channel to the launcher: one JSON object a line, orders on stdin, events on stdout. Standard library only.

Orders:  the header (first line: environment, attempt, master_addr, master_port, heartbeat_timeout), then {"do": "alive" | "go" | "preempt" | "end" | "stacks"}.
Events:  hello, alive (each second), bye; and in between what the ranks tell, see ftcore.spec.events.
"""

from __future__ import annotations

import os
import time

from launcher.json_lines import LineReader, LineWriter, Message

BEAT_S = 1.0
"""Seconds between two signs of life, in either direction."""
HEADER_LIMIT_S = 60.0

class Channel:
    """Both directions, and how long nothing was heard."""

    def __init__(self, orders: LineReader | None, events: LineWriter) -> None:
        self.orders = orders
        """None: this launcher can't send any (pdsh)."""
        self.events = events
        self.silence_limit_s = 0.0
        """0: however long."""
        self._heard = time.monotonic()
        self._kept: list[Message] = []
        """Orders that came with the header."""

    @classmethod
    def over_stdio(cls, *, reads: bool) -> Channel:
        """Takes stdin and stdout for itself: whatever else this process prints goes to stderr."""
        events = LineWriter(os.dup(1))
        # A login script may have left a line open.
        events.pending = b"\n"
        os.dup2(2, 1)
        orders = LineReader(os.dup(0)) if reads else None
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(orders, events)

    def read(self) -> list[Message]:
        """Orders that have arrived."""
        received = self.orders.read() if self.orders is not None else []
        if received:
            self._heard = time.monotonic()
        kept, self._kept = self._kept, []
        return kept + received

    def header(self) -> Message:
        """The first line; empty when the launcher went away before it came, or did not send it in a minute."""
        end = time.monotonic() + HEADER_LIMIT_S
        while self.orders is not None and self.orders.is_open and time.monotonic() < end:
            header, *self._kept = self.read() or [{}]
            if header:
                return header
            time.sleep(0.005)
        return {}

    def why_lost(self) -> str:
        """Why nobody steers this host any more; empty while somebody does."""
        if not self.events.is_open or (self.orders is not None and not self.orders.is_open):
            return "the connection to the launcher has ended"
        silence = time.monotonic() - self._heard
        if self.silence_limit_s and self.orders is not None and silence > self.silence_limit_s:
            return f"nothing was heard of the launcher for {silence:.1f} s"
        return ""
