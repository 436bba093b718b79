from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
import pytest

from ftcore.spec.errors import CheckpointError, DoesNotFitError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.schedule_lengths import schedule_problems
from ftcore.spec.sections import ScheduleSection
from launcher import short_runs
from launcher.commands import pilot as pilot_verb
from launcher.failure import RunFailedError
from launcher.memory.accelerators import GIB, find_accelerator
from launcher.memory.capacity import Capacity
from launcher.memory.pilot import LEAST_UPDATES, Measured, compare, pilot_spec, read_measured
from launcher.memory.pilot_text import pilot_facts, render_pilot
from tests.unit.planned_runs import LLAMA_8B, llama, run

SHAPE = llama(layers=4, hidden=2048, intermediate=8192)


def room(gpu: str = "4090") -> Capacity:
    accelerator = find_accelerator(gpu)
    return Capacity(accelerator=accelerator, device_bytes=accelerator.usable_bytes, device_origin="this machine", host_bytes={}, disk_bytes=None)


def measured(peak: int, tokens_per_s: float = 5000.0) -> Measured:
    return Measured(updates=6, update_s=2.0, tokens_per_s=tokens_per_s, supervised_tokens_per_s=2000.0, peak_bytes=(peak, peak - 5), row_tokens=1000)


def write_metrics(folder: Path, updates: int, ranks: int = 2, peak: int = 100) -> RunDir:
    run_dir = RunDir(folder)
    (folder / "metrics").mkdir()
    lines = [{"update": number, "seconds": 9.0 if number <= 2 else 2.0, "tokens": 4000, "supervised_tokens": 1000} for number in range(1, updates + 1)]
    run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"update": 99, "se')
    for rank in range(ranks):
        mine = [{"update": number, "tokens": 2000, "micro_steps": 2, "peak_memory_bytes": peak * number + rank} for number in range(1, updates + 1)]
        run_dir.rank_metrics(rank).write_text("".join(json.dumps(line) + "\n" for line in mine))
    return run_dir


def test_the_warm_up_says_nothing_of_speed(tmp_path):
    found = read_measured(write_metrics(tmp_path, 6), 2)
    assert (found.updates, found.update_s, found.tokens_per_s, found.supervised_tokens_per_s) == (6, 2.0, 2000.0, 500.0)
    assert (found.peak_bytes, found.row_tokens) == ((600, 601), 1000)


def test_a_pilot_that_trained_too_little(tmp_path):
    with pytest.raises(CheckpointError, match="3 are needed"):
        read_measured(write_metrics(tmp_path, LEAST_UPDATES - 1), 2)


def test_the_whole_run_at_the_measured_speed():
    resolved = run(ranks=2, samples=16, budget=4096, price_per_hour=3.0)
    quiet = compare(resolved, SHAPE, room("h100-80"), measured(1))
    assert quiet is not None
    found = compare(resolved, SHAPE, room("h100-80"), measured(quiet.expected_bytes))
    assert found.total_s == pytest.approx(100 * found.forecast.portion.tokens / 5000)
    assert found.price == pytest.approx(3 * found.device_hours) == pytest.approx(3 * 2 * found.total_s / 3600)
    # Measured as expected: at the largest micro-step it takes what the ledger says.
    assert found.expected_bytes < found.most_bytes < 78 * GIB and found.fits
    more = compare(resolved, SHAPE, room("h100-80"), measured(quiet.expected_bytes + GIB))
    assert more.most_bytes == found.most_bytes + GIB
    text = render_pilot(found)
    assert "it fits" in text and "100% of what was expected" in text and "price, USD" in text
    facts = pilot_facts(found)
    assert facts["run"]["fits"] and facts["measured"]["peak_is"] == "allocated by torch" and json.dumps(facts)


def test_a_run_that_would_not_fit():
    resolved = run(ranks=2, samples=16)
    found = compare(resolved, SHAPE, room(), measured(40 * GIB))
    assert found.fits is False and "it does not fit" in render_pilot(found)


def test_a_whole_run_that_would_not_fit_ends_with_status_7(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    (tmp_path / "run").mkdir()
    run_dir = write_metrics(tmp_path / "run", 4, peak=10 * GIB)
    resolved = run(ranks=2, accelerator="4090", method="lora")
    model = dataclasses.replace(resolved.spec.model, model_name_or_path=str(tmp_path / "model"))
    resolved = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, model=model))
    with pytest.raises(DoesNotFitError) as caught:
        pilot_verb._report(resolved, run_dir, type("Approach", (), {"facts": {}})())
    assert caught.value.exit_status == 7 and "by the pilot" in str(caught.value)
    assert json.loads((tmp_path / "run" / "pilot.json").read_text())["run"]["fits"] is False
    assert "it does not fit" in capsys.readouterr().out
    (tmp_path / "model" / "config.json").write_text("{")
    pilot_verb._report(resolved, run_dir, type("Approach", (), {"facts": {}})())
    assert "what was expected is not known" in capsys.readouterr().out


def test_one_spec_is_piloted_at_a_time():
    with pytest.raises(click.UsageError, match="one SPEC"):
        pilot_verb.run(pilot_verb.PilotOptions(**pilot_verb.command.make_context("pilot", ["a.yaml", "b.yaml"]).params))


def test_nothing_to_set_it_beside():
    unknown = Capacity(accelerator=None, device_bytes=None, device_origin="not known", host_bytes={}, disk_bytes=None)
    assert compare(run(), SHAPE, unknown, measured(1)) is None
    without_room = dataclasses.replace(room(), device_bytes=None)
    found = compare(run(), SHAPE, without_room, measured(1))
    assert found.fits is None and "is not known" in render_pilot(found)


def test_on_a_cpu_the_process_counts():
    found = compare(run(ranks=2), SHAPE, room("cpu"), measured(1))
    assert found.expected_bytes > found.ledger.device_peak_bytes
    assert "resident size" in render_pilot(found) and "the process" in render_pilot(found)


@pytest.mark.parametrize("schedule", [ScheduleSection(warmup_steps=50), ScheduleSection(lr_scheduler_type="warmup_stable_decay", decay_steps=100)])
def test_a_pilot_is_shorter_than_a_schedule(schedule: ScheduleSection):
    resolved = run()
    long = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, schedule=schedule))
    assert schedule_problems(schedule, 6) and not schedule_problems(pilot_spec(long, 6).spec.schedule, 6)


def test_a_pilot_is_the_run_cut_short():
    resolved = run()
    short = pilot_spec(resolved, 6).spec
    assert (short.train.max_steps, short.train.num_train_epochs, short.data.held_out, short.checkpoint.save_steps) == (6, None, {}, 0)
    assert (short.batch, short.optimizer, short.zero, short.method) == (resolved.spec.batch, resolved.spec.optimizer, resolved.spec.zero, resolved.spec.method)


@pytest.mark.parametrize(("report", "kind"), [("rank 1: out of memory on the accelerator", DoesNotFitError), ("rank 1: the loss is nan", RunFailedError)])
def test_memory_that_ran_out_is_a_run_that_does_not_fit(tmp_path, monkeypatch, report, kind):
    def fails(run_dir: RunDir, *_: object) -> None:
        run_dir.checkpoints.mkdir()
        raise RunFailedError(report, 6)

    monkeypatch.setattr(short_runs, "reach_with_room", lambda *_: None)
    monkeypatch.setattr(short_runs, "start_new", fails)
    monkeypatch.setattr(short_runs, "render_ds_config", lambda resolved: "{}")
    resolution = type("Resolution", (), {"resolved": run(), "spec_text": ""})()
    folder = tmp_path / "pilot"
    with pytest.raises(kind) as caught:
        pilot_verb.train(short_runs.ShortRun(verb="pilot", resolution=resolution, short=run(), output=folder, env_file=None, force=False))
    assert caught.value.exit_status == (7 if kind is DoesNotFitError else 6)
    assert folder.exists() and not (folder / "checkpoints").exists()
