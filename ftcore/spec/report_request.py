"""What `ftlaunch report` asks of the core: FOLDER/request.json, written by the launcher and read by `python -m ftcore.report FOLDER`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.stored import read_stored, stored_text

REQUEST_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """A run that is reported."""

    path: str
    """Absolute folder."""
    shown: str
    """The folder as the user named it."""
    state: str = ""
    """What `ftlaunch status` calls it; empty: as its files tell."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that is not the same in all runs."""

    section: str
    """spec, code, data or environment."""
    key: str
    values: tuple[str, ...]
    """One a run, in the runs' order; empty: the run has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """One page."""

    runs: tuple[ReportedRun, ...]
    output: str
    """Absolute file."""
    differences: tuple[Difference, ...] = ()
    """Between several runs."""
    notes: tuple[str, ...] = ()
    """What the comparison can't tell."""
    version: int = REQUEST_VERSION

    def to_json(self) -> str:
        """Indented JSON with a final newline; `load_report_request` gives back an equal value."""
        return stored_text(self)


@dataclass(frozen=True, slots=True)
class ReportRequestDir:
    """The folder of a request."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"


def load_report_request(path: Path) -> ReportRequest:
    """Reads a request. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(ReportRequest, path, version=REQUEST_VERSION, name="a request for a report", fix="ask again: ftlaunch report")
