"""RUN/findings.txt and findings.json, beside what is shown."""

from __future__ import annotations

import json
from pathlib import Path

from ftcore.spec.run_dir import RunDir, write_atomic
from launcher.findings.examine import examine
from launcher.findings.finding import Findings
from launcher.findings.text import render


def findings_txt(run_dir: RunDir) -> Path:
    """The page as text."""
    return run_dir.path / "findings.txt"


def findings_json(run_dir: RunDir) -> Path:
    """The page as JSON, as docs/failures.md describes it."""
    return run_dir.path / "findings.json"


def findings_html(run_dir: RunDir) -> Path:
    """The page for a browser (ftcore.report.findings)."""
    return run_dir.path / "findings.html"


def to_json(found: Findings) -> str:
    """The JSON text, with a final newline."""
    return json.dumps(found.to_record(), indent=2, ensure_ascii=False) + "\n"


def write_findings(run_dir: RunDir, found: Findings) -> None:
    """Writes both files. Raises OSError when the folder can't be written."""
    write_atomic(findings_txt(run_dir), render(found))
    write_atomic(findings_json(run_dir), to_json(found))


def write_quietly(run_dir: RunDir) -> bool:
    """Looks at a run and writes both files; False when that failed, which must not hide the failure that it is about."""
    try:
        write_findings(run_dir, examine(run_dir.path))
    except Exception:  # noqa: BLE001  whatever it is: the run's own failure is what has to be told
        return False
    return True
