"""What a launch is doing before its first update and after its last one, by what it has written so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ftcore.spec.run_dir import RunDir
from launcher.json_lines import Message

PREPARING = "preparing data and model"
STARTING = "starting the ranks and loading the model"
FINISHING = "evaluating and saving"
EXPORTING = "exporting the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The newest launch, as its events tell."""

    attempt: int = 0
    started: float | None = None
    """Seconds since the epoch."""
    ended: float | None = None
    trains: bool = False
    """Its training loop has begun."""

    def after(self, event: Message) -> Launch:
        """As it is after one more event of the run."""
        name, time = event.get("event"), event.get("time")
        when = float(time) if isinstance(time, int | float) else None
        if name == "launch_started":
            attempt = event.get("attempt")
            return Launch(attempt=attempt if isinstance(attempt, int) else 0, started=when)
        if name == "launch_ended":
            return replace(self, ended=when)
        return replace(self, trains=True) if name == "loop_start" else self


def stage_of(run_dir: RunDir, launch: Launch, line: dict[str, Any]) -> str:
    """Empty while it trains."""
    logs = run_dir.attempt_logs(launch.attempt)
    if (logs / "export.log").exists():
        return EXPORTING
    if line and _is_of(line, launch):
        return FINISHING if line.get("update") == line.get("total_updates") else ""
    if launch.trains:
        return ""
    return STARTING if next(logs.glob("rank_*.log"), None) is not None else PREPARING


def _is_of(line: dict[str, Any], launch: Launch) -> bool:
    """Whether a line was written by this launch; by its time, of a clock that may be another host's, only where it has no attempt."""
    if "attempt" in line:
        return bool(line["attempt"] == launch.attempt)
    time = line.get("time")
    return launch.started is None or not isinstance(time, int | float) or time >= launch.started
