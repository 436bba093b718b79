"""A histogram of lengths as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FULL, DROPPED = "█", "░"
PARTS = " ▏▎▍▌▋▊▉"
"""Eighths of a cell."""


def histogram_lines(bins: Sequence[Mapping[str, Any]], max_length: int, width: int) -> list[str]:
    """A line a bin: its lengths, a bar of at most `width` cells, its samples; and a line where data.max_length stands.

    Bins are those of data_report.json: start, end (null: without an end), kept, dropped.
    """
    if not bins:
        return []
    most = max(each["kept"] + each["dropped"] for each in bins) or 1
    labels = [_label(each) for each in bins]
    label_width = max(map(len, labels))
    lines: list[str] = []
    is_marked = False
    for each, label in zip(bins, labels, strict=True):
        if each["start"] > max_length and not is_marked:
            lines.append(_limit_line(max_length, label_width, width))
            is_marked = True
        lines.append(f"{label:>{label_width}} {_bar(each['kept'], each['dropped'], most, width)} {_counts(each)}".rstrip())
    return lines if is_marked else [*lines, _limit_line(max_length, label_width, width)]


def _label(each: Mapping[str, Any]) -> str:
    start, end = each["start"], each["end"]
    if end is None:
        return f"{start:,}+"
    return f"{start:,}-{end - 1:,}" if end - start > 1 else f"{start:,}"


def _bar(kept: int, dropped: int, most: int, width: int) -> str:
    """Kept ones solid, dropped ones light; whatever is there at all is seen."""
    eighths = max(1 if kept else 0, round(8 * width * kept / most))
    solid = FULL * (eighths // 8) + (PARTS[eighths % 8] if eighths % 8 else "")
    light = DROPPED * max(1 if dropped else 0, round(width * dropped / most))
    return solid + light


def _counts(each: Mapping[str, Any]) -> str:
    kept = f"{each['kept']:,}" if each["kept"] or not each["dropped"] else ""
    dropped = f"{each['dropped']:,} dropped" if each["dropped"] else ""
    return ", ".join(part for part in (kept, dropped) if part) if (each["kept"] or each["dropped"]) else ""


def _limit_line(max_length: int, label_width: int, width: int) -> str:
    return "-" * (label_width + 1) + f" data.max_length {max_length:,} " + "-" * max(3, width - 20)
