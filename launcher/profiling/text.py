"""The summary of a profile as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PARTS = {"compute": "compute", "communication": "communication", "copy": "copies", "data": "data", "host_bound": "host-bound", "gap": "gaps"}
BAR_CELLS = 30
TOP = 10
MOST_RANKS = 16
"""Ranks that have a row; of more the ones that compute longest and shortest."""
WIDTH = 110


def render_profile(summary: Mapping[str, Any]) -> str:
    """Tables of parts, phases, ranks and operators, and what to do."""
    blocks = [_head(summary), _parts(summary), _phases(summary), _ranks(summary), _operators(summary), _advice(summary), _problems(summary)]
    return "\n\n".join(block for block in blocks if block)


def _head(summary: Mapping[str, Any]) -> str:
    updates, ranks, world = summary["updates"], len(summary["ranks"]), summary["world_size"]
    span = f"updates {updates[0]} to {updates[-1]}" if len(updates) > 1 else f"update {updates[0]}" if updates else "traces without named updates"
    on = "an accelerator each" if summary["device"] == "accelerator" else "CPU"
    lines = [f"profiled: {span}, {ranks} {'rank' if ranks == 1 else 'ranks'}" + (f" of {world}" if world and world != ranks else "") + f", {on}"]
    if summary["update_s"] is not None:
        slower = summary["profiler_slowdown"]
        without = "" if slower is None else f" ({seconds(summary['unprofiled_update_s'])} without the profiler: {slower:+.0%})"
        lines.append(f"an update: {seconds(summary['update_s'])}{without}")
    return "\n".join(lines)


def _parts(summary: Mapping[str, Any]) -> str:
    shares, whole = summary["shares"], summary["wall_s"]
    count = len(summary["updates"])
    of = f"seconds of {count} updates" if count > 1 else "seconds"
    rows = [[name, seconds(summary["parts"][part]), share(shares[part]), "█" * round(BAR_CELLS * shares[part])] for part, name in PARTS.items()]
    rows.append(["together", seconds(sum(summary["parts"].values())), share(sum(shares.values())), f"of {seconds(whole)} wall time"])
    told = summary["communication"]
    lines = [table(["where the time goes", of, "share", ""], rows, left=(0, 3)), f"host-bound: {summary['host_bound_means']}"]
    if told["total_s"]:
        text = f"communication: {seconds(told['total_s'])} in all, {share(told['overlap_share'])} of it hidden behind computing"
        both = (told["waiting_s"] or 0) + (told["transfer_s"] or 0)
        lines.append(text + (f"; {share(told['waiting_s'] / both)} of it is waiting for the last rank" if both else ""))
    return "\n".join(lines)


def _phases(summary: Mapping[str, Any]) -> str:
    rows = [[name, seconds(each["wall_s"]), *(seconds(each[part]) for part in PARTS)] for name, each in summary["phases"].items()]
    return table(["phase", "wall", *PARTS.values()], rows, left=(0,))


def _ranks(summary: Mapping[str, Any]) -> str:
    every = sorted(summary["ranks"], key=lambda each: -each["parts"]["compute"])
    shown = every if len(every) <= MOST_RANKS else [*every[: MOST_RANKS // 2], *every[-MOST_RANKS // 2 :]]
    rows = [
        [str(each["rank"]), seconds(each["wall_s"]), *(seconds(each["parts"][part]) for part in PARTS), seconds(each["communication"]["waiting_s"]), peak(each)]
        for each in sorted(shown, key=lambda each: each["rank"])
    ]
    text = table(["rank", "wall", *PARTS.values(), "waiting", "memory"], rows, left=())
    left_out = f"\n{len(every) - len(shown)} ranks between these are in summary.json" if len(shown) < len(every) else ""
    return text + left_out + _uneven(summary["imbalance"])


def _uneven(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["slowest_rank"] is None:
        return f"\nno rank computes longest in every update; the longest one is {found['compute_max_over_mean'] - 1:.1%} over the mean"
    cause = {"data": ": it was dealt more tokens", "device": ", though it was dealt no more tokens: its device or its host is slower", "": ""}[found["cause"]]
    return f"\nrank {found['slowest_rank']} computes longest, {found['compute_max_over_mean'] - 1:.1%} over the mean{cause}"


def _operators(summary: Mapping[str, Any]) -> str:
    on_device = bool(summary["kernels"])
    key = "device_s" if on_device else "self_s"
    parts = []
    for title, found in (("operator", summary["operators"]), ("kernel", summary["kernels"])):
        rows = [[cut(each["name"], 58), seconds(each[key]), share(each["share"]), f"{each['calls']:,}", _shapes(each)] for each in found[:TOP]]
        head = [title, "on the devices" if on_device else "in itself, all ranks", "share", "calls", "shapes that took most"]
        parts += [table(head, rows, left=(0, 4))] if rows else []
    return "\n\n".join(parts)


def _shapes(operator: Mapping[str, Any]) -> str:
    return cut(operator["shapes"][0]["shapes"], 30) if operator["shapes"] else ""


def _advice(summary: Mapping[str, Any]) -> str:
    lines = []
    for each in summary["advice"]:
        lines.append(f"{PARTS[each['part']]}, {share(each['share'])}: {each['meaning']}")
        lines += [f"  - {knob}" for knob in each["knobs"]]
    return "\n".join(["what to do", *lines]) if lines else ""


def _problems(summary: Mapping[str, Any]) -> str:
    return "\n".join(f"warning: {each}" for each in summary["problems"])


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int]) -> str:
    """Columns under their names; those whose numbers are in `left` begin at the left, the others end at the right."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(width) if place in left else cell.rjust(width) for place, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    """With three digits that count: 12.3 s, 340 ms, 51 µs."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.{max(0, 2 - len(str(int(value / scale))) + 1)}f} {unit}"
    return "0" if value == 0 else "<1 µs"


def share(value: float | None) -> str:
    """In percent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def peak(rank: Mapping[str, Any]) -> str:
    """The largest allocation of a rank, on its accelerator where it has one; a dash without --memory."""
    told = rank["memory"]
    devices = [each["peak_bytes"] for name, each in told.items() if name != "cpu"] or [each["peak_bytes"] for each in told.values()]
    return f"{max(devices) / 2**20:,.0f} MiB" if devices else "-"


def cut(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
