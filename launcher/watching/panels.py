"""Lines of the view that are pictures: the loss, and where each rank's time goes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from launcher.progress import number
from launcher.watching.bars import STYLES, bar, legend
from launcher.watching.curve import plot, sparkline
from launcher.watching.numbers import in_bytes
from launcher.watching.view import RankView, View

LEAST_PLOT = 3
"""Lines from which on the loss is a plot with its scale, not one line."""
BUSY = frozenset(STYLES) - {"idle", "communication", "data_wait"}


def curve_lines(view: View, width: int, height: int, *, ascii_only: bool) -> list[Text]:
    """The loss over the whole run, in `height` lines."""
    points = view.losses.points
    if not points or height <= 0:
        return []
    first, last = number(points[0][1], ".4f"), number(view.line.get("loss"), ".4f")
    if height < LEAST_PLOT:
        room = max(1, width - len(first) - len(last) - 7)
        line = Text("loss ", style="dim")
        line.append(f"{first} ", "dim")
        line.append(sparkline(view.losses.columns(room), ascii_only=ascii_only), "cyan")
        line.append(f" {last}", "bold")
        return [line]
    values = [value for _, value in points]
    labels = [number(max(values), ".4g"), *[""] * (height - 3), number(min(values), ".4g")]
    margin = max(map(len, labels)) + 1
    title = Text("loss ", style="dim")
    title.append(last, "bold")
    title.append(f"  from {first}, over updates {points[0][0]:,} to {points[-1][0]:,}", "dim")
    drawn = plot(view.losses, max(1, width - margin), height - 1, ascii_only=ascii_only)
    lines = [title]
    for label, row in zip(labels, drawn, strict=True):
        line = Text(label.rjust(margin - 1) + " ", style="dim")
        line.append(row, "cyan")
        lines.append(line)
    return lines


def rank_lines(view: View, width: int, height: int, *, ascii_only: bool) -> list[Text]:
    """A bar a rank where there is room for all; else the mean, those that stand out, and a strip with a character a rank."""
    ranks = view.ranks
    if not ranks or height <= 0:
        return []
    mean = {phase: sum(each.phases.get(phase, 0.0) for each in ranks) / len(ranks) for phase in STYLES}
    if len(ranks) <= height:
        key = [legend(mean)] if len(ranks) < height else []
        return [*(_rank_line(each, width, view) for each in ranks), *key]
    all_of_them = Text(f"{len(ranks)} ranks ", style="dim")
    all_of_them.append_text(bar(mean, max(4, width - len(all_of_them))))
    lines = [all_of_them, *([legend(mean)] if height > 2 else [])]
    strip = _strip(ranks, width, ascii_only=ascii_only) if height > 3 else []
    lines += strip if len(strip) + len(lines) <= height else []
    room = height - len(lines)
    return [*lines, *(_rank_line(each, width, view) for each in _standing_out(ranks, room))][:height]


def _rank_line(each: RankView, width: int, view: View) -> Text:
    digits = len(str(max(0, view.world_size - 1)))
    slow = view.slowest
    is_slow = slow is not None and slow.rank == each.rank
    line = Text("rank " if width >= 60 else "", style="dim")
    line.append(f"{each.rank:>{digits}} ", "bold yellow" if is_slow else "")
    memory = in_bytes(each.memory_bytes) if each.memory_bytes else ""
    late = f" made wait {each.caused_idle:.0%}" if width >= 60 and each.caused_idle >= 0.005 else ""
    after = f" {memory}" if memory else ""
    line.append_text(bar(each.phases, max(4, width - len(line) - 11 - (15 if width >= 60 else 0))))
    line.append(after.rjust(11), "dim")
    line.append(late, "yellow" if is_slow else "dim")
    return line


def _strip(ranks: Sequence[RankView], width: int, *, ascii_only: bool) -> list[Text]:
    """How busy each rank is, a character each: waiting for others, for the network and for data left out."""
    busy = [sum(share for phase, share in each.phases.items() if phase in BUSY) for each in ranks]
    marks = sparkline([*busy, 0.0, 1.0], ascii_only=ascii_only)[:-2]
    name = "busy "
    room = max(8, width - len(name))
    lines = []
    for start in range(0, len(marks), room):
        line = Text(name if start == 0 else " " * len(name), style="dim")
        line.append(marks[start : start + room], "green")
        lines.append(line)
    return lines


def _standing_out(ranks: Sequence[RankView], count: int) -> list[RankView]:
    """Those that the others wait for, and that take the most memory, in rank order."""
    by_wait = sorted(ranks, key=lambda each: -each.caused_idle)
    by_memory = sorted(ranks, key=lambda each: -(each.memory_bytes or 0))
    found: dict[int, RankView] = {}
    for pair in zip(by_wait, by_memory, strict=True):
        for each in pair:
            if len(found) < count:
                found[each.rank] = each
    return [found[rank] for rank in sorted(found)]
