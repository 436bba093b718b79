"""Where each rank of a run that hung was, from the stacks that were taken of it. Pure but for the reading of its files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+) in (\S+)')
COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "_all_gather_base", "all_gather_object", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "reduce", "broadcast", "broadcast_object_list", "scatter", "all_to_all"),
    *("all_to_all_single", "barrier", "monitored_barrier", "send", "recv", "isend", "irecv", "wait"),
)
"""Functions of torch.distributed in which a rank waits for others."""
_OF_TORCH = ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/comm/")
_OURS = "ftcore/"
_HEARS = "ftcore/collective_calls.py"
"""Stands between every collective and whoever called it."""
_RUNS = ("R (running)",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """`function (package/file.py:line)`, the file without the folders before its package."""
        short = self.file.rpartition("site-packages/")[2]
        for package in (_OURS, "launcher/"):
            short = package + short.rpartition(f"/{package}")[2] if f"/{package}" in short else short
        return f"{self.function} ({short}:{self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What was taken of one rank."""

    rank: int
    state: str
    """What the kernel said of the process: `process 12: T (stopped), in the kernel's do_signal_stop`."""
    frames: tuple[Frame, ...]
    """Of its main thread, the innermost first; empty: it could not be had."""

    @property
    def collective(self) -> str:
        """The collective that the rank was in; empty: in none."""
        waits = [frame for frame in self.frames if frame.function in COLLECTIVES and any(part in frame.file for part in _OF_TORCH)]
        return waits[-1].function if waits else ""

    @property
    def is_stopped(self) -> bool:
        """Whether somebody, or a debugger, had stopped the process."""
        return " T (stopped)" in self.state or " t (tracing stop)" in self.state

    @property
    def in_disk_wait(self) -> bool:
        """Whether it waited in the kernel where no signal reaches it: mostly a file system."""
        return " D (disk sleep)" in self.state

    @property
    def own(self) -> Frame | None:
        """The innermost frame of this program, but for what hears of collectives."""
        return next((frame for frame in self.frames if _OURS in frame.file and not frame.file.endswith(_HEARS)), None)

    @property
    def called(self) -> str:
        """What the rank was at: its collective and where this program called it, else its innermost frame, else its state."""
        own = self.own
        if self.collective:
            return f"in {self.collective}" + (f", called from {own.place}" if own is not None else "")
        if self.frames:
            inner = self.frames[0]
            return f"in {inner.place}" + (f", called from {own.place}" if own is not None and own is not inner else "")
        return self.state or "its stack could not be had"


def read_stacks(folder: Path) -> dict[int, Stack]:
    """Rank -> its stack, of every rank_R.txt that can be read."""
    found = {}
    for path in sorted(folder.glob("rank_*.txt")):
        matched = re.fullmatch(r"rank_([0-9]+)\.txt", path.name)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if matched:
            found[int(matched[1])] = parse_stack(int(matched[1]), text)
    return dict(sorted(found.items()))


def parse_stack(rank: int, text: str) -> Stack:
    """A stack as `launcher.node_stacks` writes it: the process's state, then faulthandler's dump, whose current thread is the main one."""
    _, marked, current = text.rpartition("Current thread")
    dump = current if marked else text
    frames = tuple(Frame(file=each[1], line=int(each[2]), function=each[3]) for each in _FRAME.finditer(dump.partition("\n\n")[0] if marked else dump))
    first = text.partition("\n")[0].strip()
    return Stack(rank=rank, state=first if first.startswith("process ") else "", frames=frames)


def odd_ones(stacks: Sequence[Stack]) -> list[Stack]:
    """The ranks that the others wait for: those that are in no collective while others are; else those in another collective than most; else none.

    Several may be: any of them, or what they wait for together, is the cause. A rank that was stopped is one in any case.
    """
    stopped = [each for each in stacks if each.is_stopped]
    if stopped:
        return stopped
    outside = [each for each in stacks if not each.collective]
    if 0 < len(outside) < len(stacks):
        return outside
    places = Counter((each.collective, each.own.place if each.own is not None else "") for each in stacks)
    if len(places) < 2:
        return []
    most, count = places.most_common(1)[0]
    # Of two ranks in two places neither is the odd one: they are both, out of step.
    return [each for each in stacks if (each.collective, each.own.place if each.own is not None else "") != most] if 2 * count > len(stacks) else list(stacks)
