"""What the launcher asks for when it reports: runs, states, where the page goes, what differs; and a page at a launch's end that never fails it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError, FtError
from ftcore.spec.report_request import ReportedRun, ReportRequest
from ftcore.spec.run_dir import RunDir
from launcher.progress import Progress
from launcher.reporting.differences import differences_of
from launcher.reporting.page import make_page, write_at_end
from launcher.reporting.request import output_file, report_request, reported
from tests.unit.reported_runs import long_run


def with_values(run_dir: RunDir, **values: object) -> Path:
    """The run with other values in its spec."""
    resolved = json.loads(run_dir.resolved.read_text(encoding="utf-8"))
    resolved["spec"]["optimizer"] |= values
    run_dir.resolved.write_text(json.dumps(resolved), encoding="utf-8")
    return run_dir.path


def test_what_differs_between_three_runs(tmp_path: Path) -> None:
    folders = [
        with_values(long_run(tmp_path / name, updates=2), learning_rate=rate, betas=["a", name]) for name, rate in (("x", 1e-3), ("y", 1e-3), ("z", 2e-3))
    ]
    found, notes = differences_of(folders)
    assert [(each.section, each.key, each.values) for each in found] == [
        ("spec", "optimizer.learning_rate", ("0.001", "0.001", "0.002")),
        ("spec", "optimizer.betas", ("a, x", "a, y", "a, z")),
    ]
    assert any(note.startswith("x: its data was never prepared") for note in notes)


def test_a_key_that_only_newer_versions_have_is_no_difference(tmp_path: Path) -> None:
    older, newer = long_run(tmp_path / "older", updates=2), long_run(tmp_path / "newer", updates=2)
    resolved = json.loads(newer.resolved.read_text(encoding="utf-8"))
    resolved["spec"]["logging"] = {"phases": True, "asked": 1}
    resolved["sources"] |= {"logging.phases": "default", "logging.asked": "--set"}
    newer.resolved.write_text(json.dumps(resolved), encoding="utf-8")
    found, _ = differences_of([older.path, newer.path])
    assert [(each.key, each.values) for each in found] == [("logging.asked", ("", "1"))]


def test_a_damaged_run_is_told_and_the_others_compared(tmp_path: Path) -> None:
    one, other = long_run(tmp_path / "one", updates=2).path, long_run(tmp_path / "other", updates=2)
    other.prepared.write_text("{")
    found, notes = differences_of([one, other.path])
    assert found == () and any(note.startswith("other: can't be read") for note in notes)


def test_where_the_page_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = RunDir(tmp_path / "a b"), RunDir(tmp_path / "c")
    assert output_file([one], None) == one.path / "report.html"
    assert output_file([one, other], None) == tmp_path / "report-a-b-c.html"
    assert output_file([one] * 60, None) == tmp_path / "report-60-runs.html"
    assert output_file([one], Path("x.html")) == tmp_path / "x.html" and output_file([one], tmp_path) == tmp_path / "report.html"


def test_every_folder_without_a_run_is_named(tmp_path: Path) -> None:
    run = long_run(tmp_path / "array" / "run", updates=2).path
    request = report_request([tmp_path / "array", run], None)
    assert [each.path for each in request.runs] == [str(run)] and request.output == str(run / "report.html") and request.differences == ()
    with pytest.raises(CheckpointError) as caught:
        report_request([tmp_path / "nowhere", run, tmp_path / "neither"], None)
    assert [problem.what.rpartition("/")[2] for problem in caught.value.problems] == ["nowhere holds no run", "neither holds no run"]


def test_a_spec_of_another_version_has_no_state(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=2)
    assert reported(run_dir).state == ""


def test_a_page_that_can_not_be_written_fails_the_verb_and_no_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = long_run(tmp_path / "run", updates=2).path
    with pytest.raises(FtError, match="can't write /proc/") as caught:
        make_page(ReportRequest(runs=(ReportedRun(path=str(run), shown="run"),), output="/proc/report.html"), io.StringIO())
    assert caught.value.exit_status == 5
    (tmp_path / "empty").mkdir()
    told = io.StringIO()
    write_at_end(RunDir(tmp_path / "empty"), Progress(told))
    assert "no report was written: " in told.getvalue() and "holds no run" in told.getvalue() and "ftlaunch report " in told.getvalue()
    assert capsys.readouterr().out == ""
