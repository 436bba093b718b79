"""What `ftlaunch data prepare` built, as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcore.spec.errors import visible
from launcher.data_verbs.report_text import rows_line, tokens_line
from launcher.run_folder import shown
from launcher.shelving import size


def render_prepared(answer: Mapping[str, Any]) -> str:
    """A few lines a set: what became of its rows, and where its samples lie."""
    lines: list[str] = []
    for name, facts in answer["sets"].items():
        lines += [
            f"{name} ({facts['key']}): {rows_line(facts)}",
            f"  {tokens_line(facts)}; {facts['supervised_tokens']:,} supervised",
            f"  {shown(Path(facts['arrow']))} ({size(facts['bytes'])})",
        ]
        changed = Path(facts["outcomes"]) if facts["outcomes"] else None
        lines += [f"  rows not kept as they are: {shown(changed)}"] if changed is not None and changed.exists() and changed.stat().st_size else []
    lines += [f"{name}: streamed, so there is nothing to prepare" for name in answer["streamed"]]
    return visible("\n".join([*lines, f"prepared in {answer['seconds']:.1f} s"]))
