"""What preflight found: findings, each with its fix, and the report that holds them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from ftcore.spec.errors import ClusterError, Problem

REPORT_VERSION = 1

Level = Literal["error", "warning"]


class UnfitHostsError(ClusterError):
    """Hosts on which no rank could be started."""

    def __init__(self, problems: tuple[Problem, ...], hosts: set[str]) -> None:
        super().__init__(problems)
        self.hosts = hosts
        """Those that the rest follows from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that keeps a run from starting (`error`), or that its user should know (`warning`)."""

    host: str
    """The host it is about; empty: several, or none."""
    check: str
    """What was looked at: `reach`, `python`, `code`, `slots`, `connection`, ..."""
    level: Level
    what: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """One host."""

    name: str
    slots: int
    reached: bool
    facts: dict[str, Any]
    """What it said of itself; empty when it was not reached."""
    address: str = ""
    """Where others connect to it; empty: not known."""
    interface: str = ""
    """What its ranks use."""
    clock_skew_s: float | None = None
    """Its clock against this machine's; positive: ahead."""
    clock_error_s: float | None = None
    """How wrong that may be: half the way there and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One trial: `origin` connects to `target`."""

    origin: str
    target: str
    address: str
    port: int
    is_master: bool
    """Whether it is the place where ranks meet."""
    source: str = ""
    interface: str = ""
    seconds: float | None = None
    error: str = ""
    """Empty: it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that preflight knows."""

    hosts: tuple[HostReport, ...]
    findings: tuple[Finding, ...]
    """Errors first."""
    master_addr: str
    """Where the other hosts reach node 0; empty when that could not be found."""
    master_port: int
    """A port that was free there, or the one asked for; 0: not known."""
    master_origin: str
    """Who chose the address, in words."""
    shared: dict[str, bool | None]
    """Folder (`run`, `cache`) -> whether all hosts and this machine see the same; None: not known, or there is nothing to share."""
    connections: tuple[Connection, ...]
    all_reduce: dict[str, Any] | None
    """What was measured; None: not asked for, or not possible."""
    elapsed_s: float
    version: int = REPORT_VERSION

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep a run from starting."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def is_fit(self) -> bool:
        """Whether a run can start."""
        return not self.errors

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The errors as problems."""
        return tuple(Problem(what=each.what, where=f"preflight, {each.check}", fix=each.fix) for each in self.errors)

    def require_fit(self) -> None:
        """Raises UnfitHostsError with every error."""
        if self.errors:
            # What the others say of a host that can't be reached follows from that.
            gone = {finding.host for finding in self.errors if finding.host and finding.check == "reach"}
            raise UnfitHostsError(self.problems, gone or {finding.host for finding in self.errors if finding.host})

    def notes(self) -> tuple[str, ...]:
        """A line for each warning."""
        return tuple(f"{finding.what} ({finding.fix})" for finding in self.findings if finding.level == "warning")

    def to_json(self) -> str:
        """Indented JSON with a final newline; `fit` beside the fields."""
        return json.dumps({"version": self.version, "fit": self.is_fit, **dataclasses.asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def error(host: str, check: str, what: str, fix: str) -> Finding:
    """A finding that keeps a run from starting."""
    return Finding(host=host, check=check, level="error", what=what, fix=fix)


def warning(host: str, check: str, what: str, fix: str) -> Finding:
    """A finding that a run can start with."""
    return Finding(host=host, check=check, level="warning", what=what, fix=fix)
