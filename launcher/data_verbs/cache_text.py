"""What `ftlaunch data gc` found and did, as text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcore.spec.errors import visible
from launcher.run_folder import shown
from launcher.shelving import size

HEADINGS = ("used", "size", "samples", "key", "made of", "")
KEY_CHARACTERS = 12
"""Of a key: enough to tell caches apart."""


def render_collected(found: Mapping[str, Any], cache: str, *, lists_only: bool) -> str:
    """A line a cache, the one used longest ago first, and what was freed."""
    entries = found["entries"]
    if not entries:
        return visible(f"no prepared data in {cache}")
    rows = [HEADINGS, *(_cells(entry, dry_run=found["dry_run"]) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS) - 1)]
    lines = ["  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
    total = f"{size(sum(entry['bytes'] for entry in entries))} in {cache}"
    if lists_only:
        return visible("\n".join([*lines, f"{total}; --older-than or --all clears away"]))
    gone = sum(entry["state"] == "deleted" for entry in entries)
    word = "would be cleared away" if found["dry_run"] else "cleared away"
    return visible("\n".join([*lines, f"{gone} of {len(entries)} {word}, {size(found['freed_bytes'])} of {total}"]))


def _cells(entry: Mapping[str, Any], *, dry_run: bool) -> tuple[str, ...]:
    state = {"deleted": "would go" if dry_run else "cleared away", "kept": "", "in use": "in use"}[entry["state"]]
    return (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["used"])),
        size(entry["bytes"]),
        f"{entry['samples']:,}" if not entry["damaged"] else "-",
        entry["key"][:KEY_CHARACTERS],
        shown(Path(entry["made_of"])) if entry["made_of"] else "?",
        ", ".join(part for part in (state, entry["damaged"] and f"damaged: {entry['damaged']}") if part),
    )
