"""What events.jsonl says of a run's earlier launches."""

from __future__ import annotations

import json
from typing import Any

from ftcore.dist import Ranks, gather_objects
from ftcore.spec.run_dir import RunDir


def read_events(run_dir: RunDir) -> list[dict[str, Any]]:
    """What can be read of events.jsonl, oldest first; nothing where it is missing."""
    events = []
    text = run_dir.events.read_text(encoding="utf-8", errors="replace") if run_dir.events.exists() else ""
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def happened(run_dir: RunDir, name: str, update: int, ranks: Ranks) -> bool:
    """Whether there is an event of that name after that update, as rank 0 sees it, on every rank; each must call it."""
    found = ranks.is_first and any(event.get("event") == name and event.get("update") == update for event in read_events(run_dir))
    return bool(gather_objects(found, ranks)[0])
