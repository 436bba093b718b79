"""`ftlaunch submit --resume`: what the earlier submission said counts on, and a refusal changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore.spec.errors import ClusterError, SpecError
from ftcore.spec.run_dir import RunDir
from launcher.submission.record import cancelled_path, job_script_path, read_submission, submission_path
from launcher.submission.request import Asked
from launcher.submission.submitting import How, submit_again
from tests.unit.test_submit import SPEC, program, submitted

ANEW = How(on_cpu=False, chain=1, env_file=None, exports=True)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def run_dir(tmp_path: Path, spec: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run on CPUs with an environment file and without an export, whose job has ended."""
    program(tmp_path / "bin", "sbatch", "print(7)")
    program(tmp_path / "bin", "squeue", "print('7|FAILED||n1')")
    program(tmp_path / "bin", "scancel", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "env").write_text("A=1\n")
    (made,) = submitted(spec, tmp_path / "run", How(on_cpu=True, chain=1, env_file=tmp_path / "env", exports=False))
    return made


def test_it_is_submitted_as_before(tmp_path: Path, run_dir: RunDir) -> None:
    record = submit_again(run_dir, Asked(), ANEW)
    assert (record.on_cpu, record.env_file, record.exports) == (True, str(tmp_path / "env"), False)
    assert read_submission(run_dir) == record
    script = job_script_path(run_dir).read_text()
    assert "export DS_ACCELERATOR=cpu\n" in script and "--gpus" not in script


def test_what_is_given_anew_stands_over_it(tmp_path: Path, run_dir: RunDir) -> None:
    (tmp_path / "other").write_text("A=2\n")
    record = submit_again(run_dir, Asked(), How(on_cpu=False, chain=1, env_file=tmp_path / "other", exports=True))
    assert record.env_file == str(tmp_path / "other")


def test_an_environment_file_that_is_gone_is_told_at_once(tmp_path: Path, run_dir: RunDir) -> None:
    (tmp_path / "env").unlink()
    before = submission_path(run_dir).read_text()
    with pytest.raises(SpecError, match="can't read this environment file"):
        submit_again(run_dir, Asked(), ANEW)
    assert submission_path(run_dir).read_text() == before


def test_a_record_of_an_earlier_ftlaunch(run_dir: RunDir) -> None:
    record = json.loads(submission_path(run_dir).read_text())
    del record["on_cpu"]
    submission_path(run_dir).write_text(json.dumps(record))
    assert not submit_again(run_dir, Asked(), ANEW).on_cpu


def test_a_cancelled_run_stays_so_until_sbatch_has_taken_its_job(tmp_path: Path, run_dir: RunDir) -> None:
    cancelled_path(run_dir).touch()
    program(tmp_path / "bin", "sbatch", "sys.exit('sbatch: error: AssocMaxSubmitJobLimit')")
    with pytest.raises(ClusterError, match="AssocMaxSubmitJobLimit"):
        submit_again(run_dir, Asked(), ANEW)
    assert cancelled_path(run_dir).exists()
    # The second job of a chain is refused, and the first is cancelled again.
    program(tmp_path / "bin", "sbatch", "sys.exit('sbatch: error: AssocMaxSubmitJobLimit') if '--dependency=afterany:8' in sys.argv else print(8)")
    with pytest.raises(ClusterError, match="AssocMaxSubmitJobLimit"):
        submit_again(run_dir, Asked(), How(on_cpu=False, chain=2, env_file=None, exports=True))
    assert cancelled_path(run_dir).exists()
    program(tmp_path / "bin", "sbatch", "print(9)")
    assert submit_again(run_dir, Asked(), ANEW).jobs == ("9",) and not cancelled_path(run_dir).exists()
