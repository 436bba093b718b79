"""Progress on the terminal: one line that is rewritten on a tty, plain lines now and then in a pipe or a file."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from launcher.children import Event
from launcher.terminal_text import cut, encodable, fit, is_ascii_only, line_width, rewrites_lines
from launcher.time_left import MOST_LINES, seconds_left

PLAIN_INTERVAL_S = 5.0
"""Least time between two progress lines when the output is no terminal."""
TTY_INTERVAL_S = 0.1
"""Least time between two rewrites of the line."""
BAR_CELLS = 24
FULL, EMPTY = "█", "░"
ASCII_FULL, ASCII_EMPTY = "#", "-"
_REWRITE = "\r\x1b[K"
Text = Callable[[], str]
"""A progress line, made when it is shown: most of a fast run's never are."""


class Progress:
    """Shows events. An output that went away (a closed pipe) ends the showing, never the run."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_tty = rewrites_lines(stream.isatty(), os.environ)
        self._encoding = getattr(stream, "encoding", None)
        self._ascii_only = is_ascii_only(self._encoding or "utf-8", os.environ)
        self._interval_s = TTY_INTERVAL_S if self._is_tty else PLAIN_INTERVAL_S
        self._shown_at: float | None = None
        self._pending: Text | None = None
        """A progress line that came too soon after the one before."""
        self._is_patient = True
        self._held: list[str] = []
        """Text that the output did not take yet."""
        self._line_open = False
        """Whether the terminal's current line is a progress line."""
        self._stage = ""
        self._updates: deque[Event] = deque(maxlen=MOST_LINES)
        """What was heard of the newest updates, for the time left."""

    def show(self, event: Event) -> None:
        """Shows one event, at once or when its turn comes."""
        name = event["event"]
        if name == "update":
            self._show_update(event)
        elif name == "progress":
            self._enter(str(event.get("stage")))
            self._progress(lambda: stage_line(event, bar=self._is_tty, ascii_only=self._ascii_only))
        elif name == "note":
            self.line(str(event.get("text")))
        elif name == "evaluation":
            self.line(evaluation_line(event))
        elif name in ("failed_update", "overflow", "empty_update"):
            self.line(f"update {event.get('update')} changed nothing: {event.get('reason')}")

    def line(self, text: str) -> None:
        """A line that stays, after the progress so far."""
        self.flush()
        self._write(text + "\n")

    def flush(self) -> None:
        """Shows a progress line that was held back, and ends the line that is rewritten."""
        if self._pending is not None:
            self._put(self._pending)
        if self._line_open:
            self._write("\n")
            self._line_open = False

    def _show_update(self, event: Event) -> None:
        self._enter("train")
        self._updates.append(event)
        is_last = event["update"] == event["total_updates"]
        self._progress(lambda: update_line(event, seconds_left(self._updates), width=line_width() if self._is_tty else None), is_last=is_last)

    def _enter(self, stage: str) -> None:
        if stage != self._stage:
            self.flush()
            self._stage = stage
            self._shown_at = None

    def _progress(self, text: Text, *, is_last: bool = False) -> None:
        is_due = self._shown_at is None or self._clock() - self._shown_at >= self._interval_s
        if is_due or is_last:
            self._put(text)
        else:
            self._pending = text

    def _put(self, text: Text) -> None:
        self._pending = None
        self._shown_at = self._clock()
        if not self._is_tty:
            self._write(text() + "\n")
            return
        self._write(f"{_REWRITE}{cut(text(), line_width())}")
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
            self._stream.write(encodable(held + text, self._encoding))
            self._stream.flush()
        except (OSError, ValueError):
            return

    def _takes_text(self) -> bool:
        try:
            return bool(select.select([], [self._stream], [], 0)[1])
        except (OSError, ValueError, TypeError):
            # It has no descriptor, or one that can't be asked.
            return True


def update_line(event: Event, left_s: float | None, width: int | None = None) -> str:
    """Progress after one update, in `width` columns (None: as many as it takes); `left_s` is the estimated time left, None when nothing is known yet.

    Where there is little room, words get shorter and the last parts are left out: the first are what a reader looks for.
    """
    named = [
        f"update {event['update']}/{event['total_updates']}",
        f"loss {number(event.get('loss'), '.4f')}",
        f"lr {number(event.get('learning_rate'), '.2e')}",
        f"ETA {clock_time(left_s)}",
    ]
    supervised, tokens = (number(event.get(name), ",.0f") for name in ("supervised_tokens_per_s", "tokens_per_s"))
    peak, epoch = event.get("peak_memory_bytes"), f"epoch {number(event.get('epoch'), '.2f')}"
    memory = [] if peak is None else [f"{gibibytes(peak)} GiB"]
    whole = [*named, f"{supervised} supervised tokens/s", f"{tokens} tokens/s", *memory, epoch]
    if width is None:
        return "  ".join(whole)
    short = [*named, f"{supervised} sup tok/s", *memory]
    return fit([whole, whole[:-1], [*whole[:5], *memory], short], width)


def evaluation_line(event: Event) -> str:
    """What an evaluation found of one set."""
    which = "" if event.get("set", "eval") == "eval" else f" of {event['set']}"
    # Larger than any number is written as null.
    perplexity = "inf" if event.get("perplexity") is None else number(event.get("perplexity"), ",.4g")
    told = f", perplexity {perplexity}" if "perplexity" in event else ""
    return f"evaluation{which} after update {event.get('update')}: loss {number(event.get('loss'), '.4f')} per supervised token{told}"


def stage_line(event: Event, *, bar: bool = False, ascii_only: bool = False) -> str:
    """Progress of a stage other than training; with `bar`, how far it is as a picture where that is known."""
    done, total, text = event.get("done"), event.get("total"), event.get("text")
    count = ""
    if isinstance(done, int) and isinstance(total, int) and total > 1:
        count = f" {progress_bar(done, total, ascii_only=ascii_only)}" if bar else ""
        count += f" {done:,}/{total:,}"
    return f"{event.get('stage')}{count}" + (f": {text}" if text else "")


def progress_bar(done: int, total: int, *, ascii_only: bool = False) -> str:
    """`done` of `total` in BAR_CELLS cells, and in percent."""
    share = min(1.0, max(0.0, done / total))
    full, (on, off) = int(share * BAR_CELLS), (ASCII_FULL, ASCII_EMPTY) if ascii_only else (FULL, EMPTY)
    return f"{on * full}{off * (BAR_CELLS - full)} {int(100 * share):3d} %"


def gibibytes(value: object) -> str:
    """Bytes in GiB; `-` when it is no number."""
    return number(value / 2**30, ".1f") if isinstance(value, int | float) else "-"


def number(value: object, form: str) -> str:
    """`value` in Python's format `form`; `nan` and `inf`, which events hold as text, as they are; `-` when it is neither."""
    if value in ("nan", "inf", "-inf"):
        return str(value)
    return format(value, form) if isinstance(value, int | float) else "-"


def clock_time(seconds: float | None) -> str:
    """H:MM:SS, or `-` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
