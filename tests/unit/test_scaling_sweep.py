"""A scaling test under way: what is measured, what is kept, what is measured again and why, and how it ends. The runs themselves are made up."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ftcore.spec.errors import CheckpointError, ClusterError, DataError, DoesNotFitError, FtError, TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import PHASES
from ftcore.spec.scale_result import ScaleDir, parse_result, read_scale
from launcher import short_runs
from launcher.failure import RunFailedError, RunStoppedError
from launcher.scaling import result as result_module
from launcher.scaling import sweep as sweep_module
from launcher.scaling.finish import PointsMissingError, require_good
from launcher.scaling.identity import differences, read_identity
from launcher.scaling.points import plan_points
from launcher.scaling.request import ScaleRequest, read_request, write_request
from launcher.scaling.sweep import Sweep, measure_here, recall
from launcher.scaling.table import render_result
from tests.unit.scaled import here, machines, point, request, result, write_run

SCHEMA = Path(result_module.__file__).with_name("scale.schema.json")
Runs = list[str]


@pytest.fixture(autouse=True)
def unchanged_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured again because somebody edits a file meanwhile."""
    monkeypatch.setattr(sweep_module, "own_code", lambda: "this code")
    monkeypatch.setattr(sweep_module, "busy_cores", lambda: 0.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The names of the points whose run was started; each run is as fast as its ranks are many."""
    started: Runs = []
    monkeypatch.setattr(short_runs, "start_new", _run_of(started, {}))
    return started


def _run_of(started: Runs, errors: dict[str, BaseException]) -> Callable[..., None]:
    def start(run_dir: RunDir, new: Any, manner: Any, approach: Any) -> None:
        name = run_dir.path.name
        started.append(name)
        if name in errors:
            raise errors[name]
        ranks = new.resolved.world_size
        path = run_dir.path
        path.rmdir()
        write_run(path, [2.0 / ranks] * 11, [1000] * 11, ranks=ranks)
        run_dir.checkpoints.mkdir()

    return start


def make_sweep(folder: Path, asked: ScaleRequest | None = None, *, cores: int = 2, on_accelerators: bool = False) -> Sweep:
    asked = asked or request()
    folder.mkdir(exist_ok=True)
    wanted = plan_points(asked, machines(cores=cores, on_accelerators=on_accelerators), 1)
    return Sweep(folder=ScaleDir(folder), request=asked, wanted=wanted, variables={})


def go(sweep: Sweep) -> None:
    recall(sweep)
    measure_here(sweep)


def test_every_point_is_measured_and_kept(tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, request(ranks=(1, 2, 4)))
    go(sweep)
    found = read_scale(tmp_path)
    assert runs == ["w1-zero2", "w2-zero2", "w4-zero2"] and found == sweep.result
    assert [each.speedup for each in found.points] == [1.0, 2.0, 4.0] and found.agreement.passed
    assert [each.oversubscribed for each in found.points] == [False, False, True] and found.points[2].normalised_efficiency == 2.0
    assert found.points[0].run_updates == 100 and found.points[1].device_minutes == pytest.approx(100 * 1.0 / 60 * 2)
    assert all(each.supervised_tokens_per_s_per_rank * each.ranks == pytest.approx(each.supervised_tokens_per_s) for each in found.points)
    assert all(each.supervised_tokens_per_s * each.update_seconds == pytest.approx(each.supervised_tokens) for each in found.points)
    assert found.points[2].devices == 2 and found.points[2].device_minutes == pytest.approx(100 * 0.5 / 60 * 2)
    assert not list(tmp_path.glob("points/*/checkpoints"))
    said = capsys.readouterr().out
    assert "point 1 of 3: 1 rank in ZeRO stage 2; 3 to measure, time left: not known yet" in said and "point 3 of 3" in said
    text = render_result(found)
    assert "losses: agree" in text and "4*" in text and "100.0%" in text and "device-min" in text


def test_the_file_is_as_its_schema_says(tmp_path: Path, runs: Runs) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    sweep = make_sweep(tmp_path, request(ranks=(1, 2, 4), refused={"w4-zero2": "not so"}))
    recall(sweep)
    check = jsonschema.Draft202012Validator(schema)
    assert not list(check.iter_errors(json.loads((tmp_path / "scale.json").read_text())))
    measure_here(sweep)
    plain = json.loads((tmp_path / "scale.json").read_text())
    assert not list(check.iter_errors(plain)) and parse_result(json.dumps(plain)) == sweep.result
    # Every field is described, and a measured point without its numbers is wrong.
    assert set(schema["$defs"]["point"]["properties"]) == set(plain["points"][0]) and set(schema["properties"]) == set(plain)
    plain["points"][0]["speedup"] = None
    assert list(check.iter_errors(plain))


def test_measured_points_are_not_measured_again(tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    go(make_sweep(tmp_path))
    before = read_scale(tmp_path)
    go(make_sweep(tmp_path, request(ranks=(1, 2, 4))))
    assert runs == ["w1-zero2", "w2-zero2", "w4-zero2"] and read_scale(tmp_path).points[:2] == before.points
    assert "1 rank in stage 2: measured already" in capsys.readouterr().out


def test_a_request_that_was_read_again_is_the_same(tmp_path: Path) -> None:
    resolved = here()
    whole = dataclasses.replace(resolved.spec.optimizer, learning_rate=1)
    asked = request(dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, optimizer=whole)))
    write_request(ScaleDir(tmp_path), asked)
    sweeps = make_sweep(tmp_path, asked), make_sweep(tmp_path, read_request(ScaleDir(tmp_path)))
    assert len({sweep.key(sweep.wanted[0]) for sweep in sweeps}) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda spec: dataclasses.replace(spec, train=dataclasses.replace(spec.train, seed=7)), "train.seed (42 -> 7)"),
        (lambda spec: dataclasses.replace(spec, batch=dataclasses.replace(spec.batch, global_batch_size=8)), "batch.global_batch_size (128 -> 8)"),
    ],
)
def test_a_changed_spec_is_measured_again(tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str], change: Any, told: str) -> None:
    go(make_sweep(tmp_path))
    resolved = here()
    go(make_sweep(tmp_path, request(dataclasses.replace(resolved, spec=change(resolved.spec)))))
    assert len(runs) == 4 and f"2 ranks in stage 2: measured again: changed since: {told}" in capsys.readouterr().out


def test_what_cpu_cores_took_is_no_measurement_of_accelerators(tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    go(make_sweep(tmp_path))
    go(make_sweep(tmp_path, on_accelerators=True))
    assert len(runs) == 4 and "measured again: changed since: ranks on (CPU cores -> accelerators)" in capsys.readouterr().out


def test_changed_code_and_windows_are_measured_again(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    go(make_sweep(tmp_path))
    go(make_sweep(tmp_path, request(windows=2)))
    assert "windows.count (3 -> 2)" in capsys.readouterr().out
    monkeypatch.setattr(sweep_module, "own_code", lambda: "another")
    go(make_sweep(tmp_path, request(windows=2)))
    assert "changed since: ftlaunch's own code" in capsys.readouterr().out and len(runs) == 6
    (tmp_path / "points" / "w1-zero2" / "scale_point.json").unlink()
    monkeypatch.setattr(sweep_module, "own_code", lambda: "a third")
    recall(make_sweep(tmp_path, request(windows=2)))
    assert "1 rank in stage 2: measured again, since what it was measured with is not known any more" in capsys.readouterr().out


def test_what_differs_is_told_in_a_few_words(tmp_path: Path) -> None:
    before = {"spec": {"train": {"seed": 1}}, "files": {"/a/b.jsonl": [1, 2]}, "hosts": {"a": 1}}
    after = {"spec": {"train": {"seed": 2}}, "files": {"/a/b.jsonl": [1, 3]}, "hosts": {"b": 1}}
    assert differences(before, before) == "" and "the file /a/b.jsonl" in differences(before, after)
    assert differences(before, after).endswith("and 1 more")
    (tmp_path / "scale_point.json").write_text("[]")
    assert read_identity(tmp_path) is None and read_identity(tmp_path / "nowhere") is None


def test_points_that_nobody_asks_for_any_more(tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    go(make_sweep(tmp_path))
    go(make_sweep(tmp_path, request(stages=(3,))))
    assert "left out, since this test does not ask for them: w1-zero2, w2-zero2" in capsys.readouterr().out


FAILURES = {
    "failed": (RunFailedError("rank 1 on a failed: exit status 1\n    boom\n  its log: x", 1), 1, "rank 1 on a failed: exit status 1: boom"),
    "killed": (RunFailedError("rank 1 on a failed: killed by SIGKILL\n  out of memory: the kernel killed it", 137), 7, "out of memory: the kernel killed it"),
    "memory": (RunFailedError("rank 0 on a failed: exit status 6\n    out of memory in forward", 6), 7, "out of memory in forward"),
    "ledger": (DoesNotFitError("a rank takes too much"), 7, "a rank takes too much"),
    "host": (ClusterError("no route"), 3, "no route"),
    "short": (CheckpointError("it has 3 updates", where="scale"), 5, "it has 3 updates"),
}


@pytest.mark.parametrize("name", list(FAILURES))
def test_a_point_that_can_not_be_measured_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    error, status, why = FAILURES[name]
    started: Runs = []
    monkeypatch.setattr(short_runs, "start_new", _run_of(started, {"w1-zero2": error}))
    sweep = make_sweep(tmp_path, request(ranks=(1, 2, 4)))
    go(sweep)
    bad = sweep.result.points[0]
    assert started == ["w1-zero2", "w2-zero2", "w4-zero2"] and bad.exit_status == status and bad.reason.endswith(why)
    assert bad.state == ("does_not_fit" if status == 7 else "failed") and sweep.result.baseline(2).ranks == 2
    assert why in render_result(sweep.result)
    with pytest.raises(PointsMissingError, match="1 point could not be measured") as caught:
        require_good(sweep.result)
    assert caught.value.exit_status == status
    # Next time it is tried again, and the others are kept.
    monkeypatch.setattr(short_runs, "start_new", _run_of(started, {}))
    again = make_sweep(tmp_path, request(ranks=(1, 2, 4)))
    go(again)
    assert started[3:] == ["w1-zero2"] and again.result.points[0].is_measured
    require_good(again.result)


@pytest.mark.parametrize("error", [DataError("bad row"), CheckpointError("disk full", where="--output"), RunStoppedError(2, "again")])
def test_what_would_end_every_point_ends_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FtError) -> None:
    started: Runs = []
    monkeypatch.setattr(short_runs, "start_new", _run_of(started, {"w2-zero2": error}))
    sweep = make_sweep(tmp_path, request(ranks=(1, 2, 4)))
    with pytest.raises(type(error)):
        go(sweep)
    kept = read_scale(tmp_path)
    assert started == ["w1-zero2", "w2-zero2"] and [each.state for each in kept.points] == ["measured", "waiting", "waiting"]
    monkeypatch.setattr(short_runs, "start_new", _run_of(started, {}))
    go(make_sweep(tmp_path, request(ranks=(1, 2, 4))))
    assert started[2:] == ["w2-zero2", "w4-zero2"]


def test_refused_points_are_not_tried(tmp_path: Path, runs: Runs) -> None:
    sweep = make_sweep(tmp_path, request(refused={"w2-zero2": "zero.stage 2 can't"}))
    go(sweep)
    assert runs == ["w1-zero2"] and "2 ranks in stage 2: not allowed (zero.stage 2 can't)" in render_result(sweep.result)
    with pytest.raises(PointsMissingError) as caught:
        require_good(sweep.result)
    assert caught.value.exit_status == 2


def test_losses_that_differ_are_status_6(tmp_path: Path) -> None:
    from launcher.scaling.arithmetic import agree, set_against

    done = agree(set_against(result(point(1), point(2, losses=(2.1, 1.5)), point(4, losses=()))), 1e-5)
    text = render_result(done)
    assert "losses: NOT comparable" in text
    done = agree(set_against(result(point(1), point(2, losses=(2.1, 1.5)))), 1e-5)
    assert "losses: DIFFER" in render_result(done) and "w2-zero2: 5.0e-02" in render_result(done)
    with pytest.raises(TrainingError, match="did not train the same") as caught:
        require_good(done)
    assert caught.value.exit_status == 6


def test_the_table_has_a_price_where_one_is_given_and_tells_large_numbers_in_full() -> None:
    points = (point(1, ideal_speedup=1.0, device_minutes=6.0), point(128, ideal_speedup=128.0, device_minutes=0.3))
    assert "price" not in render_result(result(*points))
    lines = render_result(dataclasses.replace(result(*points), price_per_hour=2.0, currency="EUR")).splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith("device-min  price EUR"))
    assert lines[at + 1].endswith("0.20") and lines[at + 2].endswith("0.01")
    speed = next(line for line in lines if line.startswith("  128"))
    assert "  128  " in speed and "e+" not in speed


def test_the_tables_fit_a_terminal_and_tell_stages_apart_where_there_are_several() -> None:
    phases = dict.fromkeys(PHASES, 0.1)
    one = result(*(point(ranks, ideal_speedup=float(ranks), supervised_tokens_per_s=1e6, phases=phases) for ranks in (1, 1024)))
    text = render_result(dataclasses.replace(one, price_per_hour=2.0, currency="EUR", notes=("word " * 90,)))
    assert "ZeRO stage 2" in text.splitlines()[0] and "ranks  stage" not in text
    assert (
        max(map(len, text.splitlines())) <= 100 and max(len(line) for line in text.splitlines() if line.startswith("ranks ") and "data wait" not in line) <= 80
    )
    assert "ranks  stage  s/update" in render_result(result(point(1), point(1, stage=3)))


def test_one_window_alone_has_no_spread() -> None:
    lines = render_result(result(point(1, spread=0.0), point(2, spread=0.25, window_seconds=(0.9, 1.1)))).splitlines()
    head = next(at for at, line in enumerate(lines) if "spread" in line)
    assert [line.split()[2] for line in lines[head + 1 : head + 3]] == ["-", "25%"]


def test_a_result_without_points_can_be_shown() -> None:
    assert "no point is measured" in render_result(result())


def test_requests_and_results_that_are_damaged(tmp_path: Path) -> None:
    folder = ScaleDir(tmp_path)
    write_request(folder, request())
    assert read_request(folder) == request()
    folder.request.write_text("{}")
    with pytest.raises(CheckpointError, match="not a scaling test"):
        read_request(folder)
    whole = result(point(2)).to_json()
    wrong = (whole.replace(*each) for each in (('"tokens": 1000.0', '"tokens": NaN'), ('"ranks": 2', '"ranks": 0'), ('_per_s": 1000.0', '_per_s": -1.0')))
    for text in ("", "[]", '{"schema": 9}', '{"schema": 1}', *wrong):
        folder.result.write_text(text)
        with pytest.raises(CheckpointError, match="not a result of ftlaunch scale"):
            read_scale(tmp_path)
    with pytest.raises(CheckpointError, match="can't read"):
        read_scale(tmp_path / "nowhere")
    folder.result.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        read_scale(folder.result)
