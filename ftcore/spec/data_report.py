"""What `ftlaunch data` asks a process of the core, and where the answer lies. FOLDER holds request.json, resolved.json and, afterwards, answer.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.stored import read_stored

REQUEST_VERSION = 1
REPORT_VERSION = 1
"""Of data_report.json: raised when a key changes its meaning or goes away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """One question about the data of a spec."""

    origin: str
    """Which spec was taken, as the launcher prints it."""
    samples: int = 3
    """Rendered samples a set (report)."""
    listed: int = 10
    """Rows that are listed of each kind (report)."""
    output: str = ""
    """Absolute folder for the files of the report."""
    html: bool = False
    """Whether data_report.html is written (report)."""
    row: int = 0
    """Number of the row, from 1 (show)."""
    set_name: str = ""
    """Name of the set (show); empty: the first one that is trained on."""
    cache: str = ""
    """Absolute folder of the cache (gc)."""
    older_than_days: float | None = None
    """What was not used for so long goes (gc)."""
    everything: bool = False
    """All of it goes (gc); neither of the two: it is only listed."""
    keep: tuple[str, ...] = ()
    """Absolute folders of runs whose data stay (gc)."""
    dry_run: bool = False
    """Nothing goes, but what would go is told (gc)."""
    version: int = REQUEST_VERSION


@dataclass(frozen=True, slots=True)
class DataRequestDir:
    """The folder of one question."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def answer(self) -> Path:
        return self.path / "answer.json"


@dataclass(frozen=True, slots=True)
class DataReportDir:
    """The files of a report, for whoever reads it later."""

    path: Path

    @property
    def json(self) -> Path:
        return self.path / "data_report.json"

    @property
    def text(self) -> Path:
        return self.path / "data_report.txt"

    @property
    def html(self) -> Path:
        return self.path / "data_report.html"

    def rows(self, name: str) -> Path:
        """Every row of a set that was not kept as it is, one JSON object a line."""
        return self.path / f"rows_{name}.jsonl"


def load_request(path: Path) -> DataRequest:
    """Reads a request. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(DataRequest, path, version=REQUEST_VERSION, name="a question about data", fix="ask again: ftlaunch data")
