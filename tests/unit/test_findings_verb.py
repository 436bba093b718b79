"""`ftlaunch doctor RUN`: how it is told apart from the look at hosts, what it writes, and that no damage makes it break."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from ftcore.report.findings import findings_page
from ftcore.spec.run_dir import RunDir
from launcher.cli import main
from launcher.failure import RunFailedError, with_doctor
from launcher.findings.examine import examine
from launcher.findings.files import write_quietly
from launcher.findings.finding import Evidence, Finding, Findings, ItemChange, Knob
from tests.unit.recorded_runs import RecordedRun

ROOT = Path(__file__).parents[2]
GARBAGE = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\x00\xfe",
    b'{"event": 3}\n{"update": "x"}\n[1]\n',
    b'{"event": "error", "rank": "x", "problems": 3}\n',
    b"{" * 100_000,
)


def rich(folder: Path) -> RecordedRun:
    """A run of which every file holds something."""
    run = RecordedRun(folder)
    run.trained(12)
    run.event("finding", rank=0, kind="spike", update=9, what="a spike", causes=[{"name": "x", "suspected": True, "what": "y"}])
    run.event("failed_update", update=13, reason="the loss is nan", micro_steps=[{"rank": 0, "micro_step": 0, "loss": "nan", "samples": [1]}], loss_scale=None)
    run.error(1, "out of memory: 1.00 GiB asked for", where="memory", memory={"asked_bytes": 2**30, "segments": [100, 50]})
    run.files["logs/attempt_1/stacks/rank_0.txt"] = "process 1: S\n"
    run.ended(6, "rank 1 on localhost failed: exit status 6")
    return run


def doctor(*arguments: object) -> int:
    return main(["doctor", *map(str, arguments)])


def test_a_page_and_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rich(tmp_path / "run").write()
    assert doctor(run) == 0
    shown = capsys.readouterr().out
    assert "1. OUT OF MEMORY: rank 1 on localhost ran out of memory" in shown and "it ended the run" in shown
    assert (run / "findings.txt").read_text() in shown
    told = json.loads((run / "findings.json").read_text())
    assert told["schema"] == 1 and told["findings"][0]["kind"] == "out_of_memory"
    assert doctor(run, "--json") == 0
    assert json.loads(capsys.readouterr().out) == told
    assert doctor(run, "--json", tmp_path / "x.json") == 0 and json.loads((tmp_path / "x.json").read_text()) == told


def test_several_runs_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        rich(tmp_path / name).write()
    assert doctor(tmp_path, "--json") == 0
    assert [Path(each["run"]).name for each in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_runs_and_hosts_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rich(tmp_path / "run").write()
    hostfile = run / "hostfile"
    hostfile.write_text("localhost slots=1\n")
    assert doctor(run, "--hosts", hostfile) == 2
    assert "--hosts: for a check of hosts, which has no RUN" in capsys.readouterr().err
    assert doctor(run, "--set", "zero.stage=1", "--all-reduce") == 2
    assert "--set, --all-reduce: for a check of hosts" in capsys.readouterr().err
    assert doctor("--html") == 2
    assert "ftlaunch doctor RUN --html" in capsys.readouterr().err
    assert doctor(tmp_path / "nowhere") == 5
    assert "holds no run" in capsys.readouterr().err


def test_a_folder_that_takes_no_file_is_still_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = rich(tmp_path / "run").write()

    def refuse(run_dir: RunDir, found: Findings) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("launcher.findings.command.write_findings", refuse)
    assert doctor(run) == 0
    streams = capsys.readouterr()
    assert "OUT OF MEMORY" in streams.out and "findings.txt can't be written: Permission denied" in streams.err
    assert doctor(run, "--html") == 0
    assert "findings.txt and findings.html can't be written: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("garbage", GARBAGE)
def test_no_damage_makes_it_break(garbage: bytes, tmp_path: Path) -> None:
    names = [str(path.relative_to(tmp_path / "run")) for path in sorted(rich(tmp_path / "run").write().rglob("*")) if path.is_file()]
    assert len(names) >= 9
    for name in [each for each in names if each != "resolved.json"]:
        folder = rich(tmp_path / "run").write()
        (folder / name).write_bytes(garbage)
        found = examine(folder)
        assert isinstance(found.findings, tuple), name
        (folder / name).unlink()
        assert isinstance(examine(folder).findings, tuple), name
        (folder / name).mkdir()
        assert isinstance(examine(folder).findings, tuple), name
        (folder / name).rmdir()


def test_a_spec_of_another_version_leaves_the_rest(tmp_path: Path) -> None:
    folder = rich(tmp_path / "run").write()
    (folder / "resolved.json").write_text('{"version": 99, "spec": {}}')
    found = examine(folder)
    assert found.findings[0].kind == "out_of_memory" and found.findings[0].knobs == ()
    assert any("resolved.json can't be used" in line for line in found.missing)


def test_a_model_that_is_not_here_has_no_ledger(tmp_path: Path) -> None:
    run = rich(tmp_path / "run")
    run.set("model", model_name_or_path="owner/nowhere")
    found = examine(run.write())
    assert any("no memory ledger" in line for line in found.missing) and found.findings[0].kind == "out_of_memory"


def test_before_the_first_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RecordedRun(tmp_path / "run")
    run.events.clear()
    folder = run.write()
    assert examine(folder).state == "new" and doctor(folder) == 0
    assert "no launch has begun" in capsys.readouterr().out


def test_a_failed_launch_ends_with_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = RunDir(rich(tmp_path / "my run").write())
    assert write_quietly(run_dir) and (run_dir.path / "findings.txt").is_file()
    report = with_doctor(RunFailedError("rank 1 failed\n  to do: x", 6), run_dir, is_written=True)
    assert str(report).splitlines()[-1] == "  to do: ftlaunch doctor 'my run'   (also in my run/findings.txt)"
    assert (report.exit_status, report.brief) == (6, "rank 1 failed")
    (run_dir.path / "resolved.json").unlink()
    assert not write_quietly(run_dir)


def test_the_page_for_a_browser(tmp_path: Path) -> None:
    found = examine(rich(tmp_path / "run").write())
    page = findings_page(json.loads(json.dumps(found.to_record())))
    assert "Out of memory" in page and "gradient_checkpointing" in page and "<script" not in page
    healthy = dataclasses.replace(found, findings=())
    assert "Nothing stands out" in findings_page(json.loads(json.dumps(healthy.to_record())))


def test_every_key_of_the_json_is_described() -> None:
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    for kind in (Findings, Finding, Evidence, ItemChange, Knob):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in text, (kind.__name__, field.name)


def test_every_kind_is_described() -> None:
    """Kinds as the code spells them, and as the page of failures lists them."""
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "launcher/findings").glob("*.py"))
    kinds = set(re.findall(r'kind="([a-z_]+)"', source))
    assert len(kinds) > 25
    assert not {kind for kind in kinds if f"`{kind}`" not in text}
