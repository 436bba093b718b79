"""What the doctor says of a run: plain values, for the terminal, for findings.json and for a page."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
"""Of findings.json; its keys are described in docs/failures.md and stay."""
ENDED, WRONG, SLOW, NOTE = "ended", "wrong", "slow", "note"
SEVERITIES = (ENDED, WRONG, SLOW, NOTE)
"""It ended the run; what is computed, or its memory, goes wrong; it costs time; worth knowing. Findings come in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was recorded."""

    what: str
    """With its numbers."""
    file: str
    """Where it stands, from the run's folder on; empty: it was looked up elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemChange:
    """One item of the memory ledger, in bytes of a rank."""

    name: str
    predicted_bytes: int
    """At the largest micro-step that the spec allows, as RUN/memory.json plans for."""
    usual_bytes: int | None
    """At the usual micro-step of this run; None: it has logged none."""
    here_bytes: int | None
    """At the micro-step of the finding; None: that is not known."""

    @property
    def grew_bytes(self) -> int:
        """From the usual micro-step to this one."""
        return self.here_bytes - self.usual_bytes if self.here_bytes is not None and self.usual_bytes is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One thing to change, and what it gives and costs."""

    options: str
    """To copy: `--set key=value`."""
    gives: str
    costs: str = ""
    saved_bytes: int | None = None
    """By the ledger, a rank; None: it is not about memory."""
    is_enough: bool | None = None
    """Whether it saves what was short by itself; None: not known how much was short."""
    may_resume: bool = False
    """A resume takes it; else it is for a new run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that happened, or goes on."""

    kind: str
    severity: str
    """One of SEVERITIES."""
    what: str
    """One line, with the numbers."""
    rank: int | None = None
    host: str = ""
    update: int | None = None
    """From 1."""
    phase: str = ""
    time: float | None = None
    """Seconds since the epoch."""
    weight: float = 0.0
    """Decides between findings of a severity, the largest first: a share of the time, for those that are slow."""
    details: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    """The likely ones first."""
    evidence: tuple[Evidence, ...] = ()
    items: tuple[ItemChange, ...] = ()
    """Of the ledger, those that changed most first."""
    knobs: tuple[Knob, ...] = ()
    """In order of cost."""
    go_on: tuple[str, ...] = ()
    """Command lines."""

    def to_record(self) -> dict[str, Any]:
        """What findings.json holds of it."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the doctor has to say of a run."""

    run: str
    state: str
    """running, finished, preempted, stopped, failed, killed or new."""
    attempt: int
    """The newest launch; 0: none has begun."""
    update: int
    """Updates done."""
    total_updates: int | None
    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    """What there was to look at, in words."""
    missing: tuple[str, ...]
    """What was not there, or can't be read, so that nothing is said of it."""

    def to_record(self) -> dict[str, Any]:
        """What findings.json holds."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """By severity, then by weight, else as they come."""
    return tuple(sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), -each.weight)))
