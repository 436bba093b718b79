"""`ftlaunch scale` on the command line: what it takes, what it refuses, and how a test begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import CheckpointError, FtError, SpecError
from ftcore.spec.resolved import Host
from ftcore.spec.scale_result import ScaleDir
from launcher.cli import main
from launcher.failure import RunStoppedError
from launcher.progress import Progress
from launcher.scaling import finish
from launcher.scaling.request import WEAK, write_request
from launcher.scaling.start import Asked, Subject, make_request, new_folder, open_sweep, with_earlier_points
from launcher.scaling.table import render_result
from launcher.spec_source import Options
from tests.unit.scaled import here, machines, point, request, result

ASKED = Asked(mode="strong", ranks=(), stages=(), warm_up=2, windows=3, window_updates=3, tolerance=None, threads=None, env_file="", force=False)


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--ranks", "0"), 2, "0 is no number of ranks"),
        (("--ranks=-1",), 2, "-1 is no number of ranks"),
        (("--ranks", "1,a"), 2, "'a' is no number of ranks"),
        (("--ranks", "1,100000"), 2, "100000 ranks are more than the"),
        (("--stages", "0,4"), 2, "'4' is no ZeRO stage"),
        (("--stages", "0,4", "--ranks", "0"), 2, "ftlaunch: 2 problems"),
        (("--mode", "weak", "--ranks", "2,3", "batch.global_batch_size=3"), 2, "does not grow to 3 ranks"),
        (("--mode", "odd"), 2, "odd"),
        (("--windows", "0"), 2, "--windows"),
        (("--ranks", "1", "optimizer.learning_rate=fast"), 2, "learning_rate"),
        (("--simulate", "8", "--windows", "2"), 2, "--windows: --simulate runs nothing"),
        (("--simulate", "0"), 2, "0 is no number of ranks"),
        (("--simulate", "0", "--stages", "4"), 2, "ftlaunch: 2 problems"),
        (("--gpu", "h100-80"), 2, "--gpu: only with --simulate"),
        (("--json",), 2, "--json: only with --simulate"),
        (("--wait",), 2, "--wait: only with --submit"),
        (("--cpu", "--time", "2h"), 2, "--cpu, --time: only with --submit"),
        (("nowhere.yaml",), 2, "nowhere.yaml"),
        (("long" * 100,), 2, "longlong"),
        (("a.yaml", "b.yaml"), 2, "one SPEC is measured at a time"),
        (("--submit",), 2, "slots-per-node"),
        ((".",), 5, "holds no scaling test"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[str, ...], status: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", *arguments]) == status
    assert told in capsys.readouterr().err and not Path("scalings").exists()


def test_a_folder_goes_on_as_it_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_request(ScaleDir(tmp_path), request())
    assert main(["scale", str(tmp_path), "--ranks", "1,2"]) == 2
    assert f"--ranks: {tmp_path} goes on as it was asked for" in capsys.readouterr().err
    assert main(["scale", str(tmp_path), "train.seed=3"]) == 2
    assert "KEY=VALUE: " in capsys.readouterr().err
    assert main(["scale", str(tmp_path), "--submit"]) == 2
    assert "is measured from here, not by jobs" in capsys.readouterr().err


def test_points_that_never_became_a_job_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_request(ScaleDir(tmp_path), request(scheduler=SchedulerSection(slots_per_node=2), on_cpu=True))
    assert main(["scale", str(tmp_path)]) == 0
    assert "never queued: w1-zero2, w2-zero2; ftlaunch scale" in capsys.readouterr().out


def test_a_simulation_needs_an_accelerator_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--simulate", "8,64", "--gpu", "h100-80", "--network", "8x400"]) == 0
    assert "h100-80" in capsys.readouterr().out
    assert main(["scale", "--simulate", "8", "--gpu", "h100-80", "--json"]) == 0
    assert '"points"' in capsys.readouterr().out
    assert main(["scale", "--simulate", "8", "--gpu", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err
    hostfile = Path("hosts")
    hostfile.write_text("far-away slots=8\n")
    assert main(["scale", "--simulate", "8", "--hosts", str(hostfile)]) == 2
    assert "--gpu: the accelerator is not known" in capsys.readouterr().err


def subject() -> Subject:
    return Subject(options=Options(), resolved=here(), name="spec.yaml", text="", zero_config="")


def test_defaults_of_a_request() -> None:
    made = make_request(ASKED, subject(), machines())
    assert (made.ranks, made.stages, made.tolerance, made.scheduler) == ((1, 2), (2,), 2e-2, None)
    assert make_request(dataclasses.replace(ASKED, tolerance=0.5), subject(), machines()).tolerance == 0.5


def test_points_that_the_rules_refuse(tmp_path: Path) -> None:
    offload = Options(sets=("zero.offload_param=cpu", "zero.stage=3"))
    base = here()
    base = dataclasses.replace(base, spec=dataclasses.replace(base.spec, zero=dataclasses.replace(base.spec.zero, stage=3)))
    made = make_request(dataclasses.replace(ASKED, stages=(0, 3)), dataclasses.replace(subject(), options=offload, resolved=base), machines())
    assert set(made.refused) in ({"w1-zero0", "w2-zero0"}, set())
    wrong = Options(sets=("optimizer.learning_rate=fast",))
    with pytest.raises(SpecError, match="no point is allowed"):
        make_request(ASKED, dataclasses.replace(subject(), options=wrong), machines())


def test_a_folder_holds_one_mode(tmp_path: Path) -> None:
    folder = new_folder(request(), tmp_path / "scale")
    write_request(folder, request())
    assert new_folder(request(), tmp_path / "scale") == folder
    with pytest.raises(CheckpointError, match="holds a test of strong scaling"):
        new_folder(request(mode="weak"), tmp_path / "scale")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(CheckpointError, match="is not empty"):
        new_folder(request(), tmp_path / "other")
    assert new_folder(request(), None).path.parent.name == "scalings"


def test_points_that_are_jobs_and_points_that_are_measured_here_do_not_share_a_folder(tmp_path: Path) -> None:
    by_jobs = request(scheduler=SchedulerSection(slots_per_node=2), on_cpu=True)
    folder = new_folder(by_jobs, tmp_path / "jobs")
    write_request(folder, by_jobs)
    assert new_folder(by_jobs, folder.path) == folder
    with pytest.raises(CheckpointError, match="by jobs, not from here"):
        new_folder(request(), folder.path)
    write_request(new_folder(request(), tmp_path / "here"), request())
    with pytest.raises(CheckpointError, match="from here, not by jobs"):
        new_folder(by_jobs, tmp_path / "here")


def test_points_of_an_earlier_call_stay(tmp_path: Path) -> None:
    folder = ScaleDir(tmp_path)
    assert with_earlier_points(request(), folder) == request()
    write_request(folder, request(refused={"w2-zero2": "why"}))
    more = with_earlier_points(request(ranks=(4, 8)), folder)
    assert more.ranks == (1, 2, 4, 8) and more.refused == {"w2-zero2": "why"}
    assert with_earlier_points(request(stages=(3,)), folder).stages == (2, 3)
    # What makes no whole grid with the earlier points, or is measured in another way, stands alone.
    assert with_earlier_points(request(ranks=(4,), stages=(3,)), folder).ranks == (4,)
    assert with_earlier_points(request(ranks=(4,), windows=5), folder).ranks == (4,)
    assert with_earlier_points(request(here(samples=64), ranks=(4,)), folder).ranks == (4,)
    other = dataclasses.replace(here(), hosts=(Host(name="a", slots=2),))
    assert with_earlier_points(request(other, ranks=(4,)), folder).ranks == (4,)


def test_threads_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = request(scheduler=SchedulerSection(slots_per_node=2), on_cpu=True)
    folder = ScaleDir(tmp_path)
    assert {each.threads for each in open_sweep(folder, jobs, None, {}).wanted} == {1}
    assert {each.threads for each in open_sweep(folder, jobs, None, {"OMP_NUM_THREADS": "3"}).wanted} == {3}
    assert {each.threads for each in open_sweep(folder, dataclasses.replace(jobs, threads=2), None, {}).wanted} == {2}
    assert {each.threads for each in open_sweep(folder, dataclasses.replace(jobs, on_cpu=False), None, {}).wanted} == {None}


def test_a_page_that_can_not_be_made_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    def refuse(self: object, *arguments: object) -> None:
        raise errors.pop()

    errors: list[FtError] = [RunStoppedError(2, "again"), FtError("no library")]
    monkeypatch.setattr(finish.Steps, "run", refuse)
    folder = ScaleDir(tmp_path)
    finish.show_result(folder, result(point(1)), Progress(sys.stdout))
    said = capsys.readouterr().out
    assert "warning: no page: no library" in said and "result: " in said and folder.table.read_text() == render_result(result(point(1))) + "\n"
    with pytest.raises(RunStoppedError):
        finish.show_result(folder, result(point(1)), Progress(sys.stdout))


def test_weak_needs_no_agreement() -> None:
    assert "losses" not in render_result(result(point(1), mode=WEAK))
