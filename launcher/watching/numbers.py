"""Lines of the view that are text: state, progress, numbers, what was saved and scored, events."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ftcore.spec.recorded import local_time
from launcher.progress import clock_time, number
from launcher.watching.view import View

TONES = {"": "", "good": "green", "warn": "yellow", "wrong": "bold red"}
STATES = {
    "running": "bold green",
    "finished": "bold green",
    "failed": "bold white on red",
    "stopped": "bold yellow",
    "preempted": "bold yellow",
}
SILENT_S = 60.0
"""Without a logged update for so long a run says so."""


def head(view: View, width: int) -> list[Text]:
    """The name, the state, and why."""
    line = Text()
    state = f" {view.state} "
    about = [f"attempt {view.attempt}" if view.attempt > 1 else "", f"{view.world_size} ranks" if view.world_size > 1 else "1 rank"]
    about += [f"{view.hosts} hosts" if view.hosts > 1 else ""]
    tail = " · ".join(part for part in about if part)
    room = width - len(state) - len(tail) - 2
    line.append(_from_end(view.name, max(8, room)), "bold")
    line.append(" ")
    line.append(state, STATES.get(view.state, "bold cyan"))
    line.append(f" {tail}", "dim")
    lines = [line]
    why, failed = view.why or view.stage, view.state == "failed"
    if why:
        lines.append(Text(why, style=TONES["wrong"] if failed else "cyan"))
    if view.last_error and view.last_error not in why:
        lines.append(Text(f"last error: {view.last_error}", style="red"))
    if failed:
        lines.append(Text(f"what to do: ftlaunch doctor {view.name}", style="cyan"))
    return lines


def progress(view: View, width: int, *, ascii_only: bool) -> list[Text]:
    """How far it is and how long it takes; without an update only how long it has run."""
    update, total = view.line.get("update"), view.line.get("total_updates")
    ran = f"ran {clock_time(view.elapsed_s)}" if view.elapsed_s is not None else ""
    if not isinstance(update, int) or not isinstance(total, int) or total < 1:
        return [Text(ran, style="dim")] if ran else []
    times = f"ETA {clock_time(view.left_s)}" if view.left_s is not None else ""
    left, right = f"update {update:,}/{total:,} ", f" {100 * update // total} %"
    epoch = f"epoch {number(view.line.get('epoch'), '.2f')}"
    after = "  ".join(part for part in (times, epoch, ran) if part)
    cells = max(0, min(40, width - len(left) - len(right) - len(after) - 2))
    if cells < 8:
        # A narrow terminal: the bar has the first line, the times the second.
        cells = max(0, width - len(left) - len(right))
        return [_bar(left, right, update / total, cells, ascii_only=ascii_only), Text(after, style="dim")]
    line = _bar(left, right, update / total, cells, ascii_only=ascii_only)
    line.append(f"  {after}", "dim")
    return [line]


def _bar(left: str, right: str, done: float, cells: int, *, ascii_only: bool) -> Text:
    full, empty = ("#", "-") if ascii_only else ("█", "░")
    count = int(min(1.0, max(0.0, done)) * cells)
    line = Text(left)
    line.append(full * count, "green")
    line.append(empty * (cells - count), "dim")
    line.append(right)
    return line


def facts(view: View, width: int) -> list[Text]:
    """The newest numbers, as many in a line as fit."""
    line = view.line
    if not line:
        return []
    padding = line.get("padding_share")
    mfu, peak = line.get("mfu"), max((each.memory_bytes or 0 for each in view.ranks), default=0) or line.get("peak_memory_bytes")
    items = [
        ("lr", number(line.get("learning_rate"), ".2e")),
        ("grad norm", number(line.get("grad_norm"), ".4g")),
        ("supervised tokens/s", number(line.get("supervised_tokens_per_s"), ",.0f")),
        ("tokens/s", number(line.get("tokens_per_s"), ",.0f")),
        ("s/update", number(line.get("seconds"), ".3g")),
        ("memory", in_bytes(peak) if isinstance(peak, int | float) and peak else "-"),
        ("MFU", f"{100 * mfu:.1f} %" if isinstance(mfu, int | float) else "-"),
        ("padding", f"{100 * padding:.1f} %" if isinstance(padding, int | float) and padding > 0 else "-"),
    ]
    shown = [(name, value) for name, value in items if value != "-"]
    if view.silent_s is not None and view.silent_s > max(SILENT_S, 5 * float(line.get("seconds") or 0)) and not view.stage:
        shown.append(("last update", f"{clock_time(view.silent_s)} ago"))
    return _wrapped(shown, width)


def _wrapped(items: Sequence[tuple[str, str]], width: int) -> list[Text]:
    lines: list[Text] = []
    for name, value in items:
        gap = 2 if lines and len(lines[-1]) else 0
        if not lines or len(lines[-1]) + gap + len(name) + 1 + len(value) > width:
            lines.append(Text())
            gap = 0
        lines[-1].append(" " * gap + f"{name} ", "dim")
        lines[-1].append(value, "bold")
    return lines


def latest(view: View, width: int) -> list[Text]:
    """The newest checkpoint and scores, and the rank that the others wait for."""
    lines = []
    slow = view.slowest
    if slow is not None:
        late = f", late in its {slow.late_phase.replace('_', ' ')}" if slow.late_phase else ""
        host = f" on {slow.host}" if slow.host else ""
        is_told = slow.rank in view.slow_ranks
        text = f"{'slow' if is_told else 'waited for'}: rank {slow.rank}{host}{late}; the others wait {slow.caused_idle:.0%} of the time"
        lines.append(Text(text, style="bold yellow" if is_told else "yellow"))
    if view.checkpoint:
        lines.append(_named("checkpoint", _from_end(view.checkpoint, width - 11)))
    lines += [_named("evaluation", text) for text in view.evaluations[-3:]]
    return lines


def _named(name: str, text: str) -> Text:
    line = Text(f"{name} ", style="dim")
    line.append(text, "not dim")
    return line


def notices(view: View, count: int) -> list[Text]:
    """The newest events, the newest last."""
    if count <= 0:
        return []
    lines = []
    for each in view.notices[-count:]:
        clock = local_time(each.time, "%H:%M:%S") or "        "
        line = Text(f"{clock} ", style="dim")
        line.append(each.text, f"not dim {TONES[each.tone]}".strip())
        lines.append(line)
    return lines


def in_bytes(value: float) -> str:
    """In GiB, or MiB below one."""
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.0f} MiB"


def _from_end(text: str, most: int) -> str:
    return text if len(text) <= most else "…" + text[-max(1, most - 1) :]
