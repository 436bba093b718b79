"""Progress on the terminal: one line that is rewritten on a tty, plain lines now and then in a pipe or a file."""

from __future__ import annotations

import contextlib
import select
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from launcher.children import Event

PLAIN_INTERVAL_S = 5.0
"""Least time between two progress lines when the output is no terminal."""
TTY_INTERVAL_S = 0.1
"""Least time between two rewrites of the line."""
BAR_CELLS, FULL, EMPTY = 24, "█", "░"
_REWRITE = "\r\x1b[K"


class Progress:
    """Shows events. An output that went away (a closed pipe) ends the showing, never the run."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_tty = stream.isatty()
        self._interval_s = TTY_INTERVAL_S if self._is_tty else PLAIN_INTERVAL_S
        self._shown_at: float | None = None
        self._pending = ""
        """A progress line that came too soon after the one before."""
        self._is_patient = True
        self._held: list[str] = []
        """Text that the output did not take yet."""
        self._line_open = False
        """Whether the terminal's current line is a progress line."""
        self._stage = ""
        self._started: tuple[float, int] | None = None
        """Time and number of the first update that was seen, for the time left."""

    def show(self, event: Event) -> None:
        """Shows one event, at once or when its turn comes."""
        name = event["event"]
        if name == "update":
            self._show_update(event)
        elif name == "progress":
            self._enter(str(event.get("stage")))
            self._progress(stage_line(event, bar=self._is_tty))
        elif name == "note":
            self.line(str(event.get("text")))
        elif name == "evaluation":
            which = "" if event.get("set", "eval") == "eval" else f" of {event['set']}"
            self.line(f"evaluation{which} after update {event.get('update')}: loss {number(event.get('loss'), '.4f')} per supervised token")
        elif name in ("failed_update", "overflow", "empty_update"):
            self.line(f"update {event.get('update')} changed nothing: {event.get('reason')}")

    def line(self, text: str) -> None:
        """A line that stays, after the progress so far."""
        self.flush()
        self._write(text + "\n")

    def flush(self) -> None:
        """Shows a progress line that was held back, and ends the line that is rewritten."""
        if self._pending:
            self._put(self._pending)
        if self._line_open:
            self._write("\n")
            self._line_open = False

    def _show_update(self, event: Event) -> None:
        self._enter("train")
        now, done, total = self._clock(), int(event["update"]), int(event["total_updates"])
        if self._started is None:
            self._started = (now, done)
        since, first = self._started
        left_s = (now - since) / (done - first) * (total - done) if done > first else None
        self._progress(update_line(event, left_s), is_last=done == total)

    def _enter(self, stage: str) -> None:
        if stage != self._stage:
            self.flush()
            self._stage = stage
            self._shown_at = None

    def _progress(self, text: str, *, is_last: bool = False) -> None:
        is_due = self._shown_at is None or self._clock() - self._shown_at >= self._interval_s
        if is_due or is_last:
            self._put(text)
        else:
            self._pending = text

    def _put(self, text: str) -> None:
        self._pending = ""
        self._shown_at = self._clock()
        if not self._is_tty:
            self._write(text + "\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._write(f"{_REWRITE}{text[:width]}")
        self._line_open = True

    @contextlib.contextmanager
    def never_waiting(self) -> Iterator[None]:
        """While active, a terminal or pipe that takes nothing (Ctrl-S, a pager) holds nobody up: lines that stay are written later."""
        self._is_patient = False
        try:
            yield
        finally:
            self._is_patient = True
            self._write("")

    def _write(self, text: str) -> None:
        try:
            if not self._is_patient and not self._takes_text():
                # A line that would be rewritten anyway is left out.
                self._held += [] if text.startswith(_REWRITE) else [text]
                return
            held, self._held = "".join(self._held), []
            self._stream.write(held + text)
            self._stream.flush()
        except (OSError, ValueError):
            return

    def _takes_text(self) -> bool:
        try:
            return bool(select.select([], [self._stream], [], 0)[1])
        except (OSError, ValueError, TypeError):
            # It has no descriptor, or one that can't be asked.
            return True


def update_line(event: Event, left_s: float | None) -> str:
    """Progress after one update; `left_s` is the estimated time left, None when nothing is known yet."""
    parts = [
        f"update {event['update']}/{event['total_updates']}",
        f"epoch {number(event.get('epoch'), '.2f')}",
        f"loss {number(event.get('loss'), '.4f')}",
        f"lr {number(event.get('learning_rate'), '.2e')}",
        f"ETA {duration(left_s)}",
        f"{number(event.get('tokens_per_s'), ',.0f')} tokens/s",
        f"{number(event.get('supervised_tokens_per_s'), ',.0f')} supervised tokens/s",
    ]
    return "  ".join(parts)


def stage_line(event: Event, *, bar: bool = False) -> str:
    """Progress of a stage other than training; with `bar`, how far it is as a picture where that is known."""
    done, total, text = event.get("done"), event.get("total"), event.get("text")
    count = ""
    if isinstance(done, int) and isinstance(total, int) and total > 1:
        count = f" {progress_bar(done, total)}" if bar else ""
        count += f" {done:,}/{total:,}"
    return f"{event.get('stage')}{count}" + (f": {text}" if text else "")


def progress_bar(done: int, total: int) -> str:
    """`done` of `total` in BAR_CELLS cells, and in percent."""
    share = min(1.0, max(0.0, done / total))
    full = int(share * BAR_CELLS)
    return f"{FULL * full}{EMPTY * (BAR_CELLS - full)} {int(100 * share):3d} %"


def number(value: object, form: str) -> str:
    """`value` in Python's format `form`; `nan` and `inf`, which events hold as text, as they are; `-` when it is neither."""
    if value in ("nan", "inf", "-inf"):
        return str(value)
    return format(value, form) if isinstance(value, int | float) else "-"


def duration(seconds: float | None) -> str:
    """H:MM:SS, or `-` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
