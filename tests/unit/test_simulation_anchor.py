"""What a simulation is tied to, and the deal it asks the core for."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from ftcore import deals
from ftcore.batch.cost import AttentionShare
from ftcore.batch.plan_counts import count_run
from ftcore.batch.window import UpdateSequence
from ftcore.data.lengths import note_lengths
from ftcore.data.mix import SampleMix
from ftcore.spec.deals import Case, DealsAsked, DealsDir, load_deals, read_dealt
from ftcore.spec.errors import CheckpointError, FtError, SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import ScalePoint, ScaleResult
from ftcore.spec.stored import stored_text
from launcher.memory.accelerators import find_accelerator
from launcher.memory.cost import RunData
from launcher.memory.lengths import DataLengths
from launcher.simulation.anchor import nearest, read_anchors, require_like
from launcher.simulation.asking import prepared_files, real_deals
from launcher.simulation.sweep import Question, simulate_all
from launcher.simulation.uncertainty import TIED
from tests.unit.made_runs import add_lines, line
from tests.unit.planned_runs import llama, run
from tests.unit.prepared_sets import prepared, section, tiny_source, write_rows

H100 = find_accelerator("h100-80")
LENGTHS = DataLengths(samples=100_000, tokens=1e8, supervised_tokens=5e7, squares=1e11, longest=1000, histogram={}, origin="counted", is_assumed=False)


def scale_file(folder: Path, *points: tuple[int, int, float], **more: object) -> Path:
    """SCALE/scale.json with measured points (ranks, stage, tokens/s) on accelerators."""
    made = tuple(
        ScalePoint(name=f"w{ranks}-zero{stage}", ranks=ranks, stage=stage, hosts={}, state="measured", tokens_per_s=speed, accelerators=ranks, **more)
        for ranks, stage, speed in points
    )
    result = ScaleResult(spec="s", model="owner/model", mode="strong", precision="bf16", warm_up=1, windows=3, updates=9, points=made)
    folder.mkdir(exist_ok=True)
    (folder / "scale.json").write_text(result.to_json())
    return folder


def run_folder(folder: Path, resolved: ResolvedSpec, *lines: dict[str, object]) -> Path:
    folder.mkdir()
    RunDir(folder).resolved.write_text(resolved.to_json())
    add_lines(RunDir(folder).metrics, *lines)
    return folder


def question(**more: object) -> Question:
    given = {"resolved": run(stage=3, samples=1024), "origin": "spec.yaml", "shape": llama(), "accelerator": H100, "ranks": (8, 64), "network": "8x400"}
    return Question(**{**given, **more})


def test_a_measured_point_is_met_and_carries_to_others(tmp_path):
    folder = scale_file(tmp_path / "scale", (8, 3, 5.0))
    untied, tied = simulate_all(question()), simulate_all(question(measured=folder))
    assert tied.points[0].tokens_per_s == pytest.approx(5.0) and "5 tokens/s on 8 ranks, stage 3" in tied.anchor and tied.band.startswith("±5%")
    # Computing is scaled, and collectives stay as they were.
    for before, after in zip(untied.points, tied.points, strict=True):
        assert after.phases["communication"] == pytest.approx(before.phases["communication"])
    factors = [after.phases["compute"] / before.phases["compute"] for before, after in zip(untied.points, tied.points, strict=True)]
    assert factors[0] == pytest.approx(factors[1])
    # The folder or its file.
    assert read_anchors(folder) == tuple(dataclasses.replace(each, origin=str(folder)) for each in read_anchors(folder / "scale.json"))


def test_a_measured_update_of_another_size_is_told_from_the_spec_s(tmp_path, monkeypatch):
    """What the model itself foretells of larger updates changes nothing of its other numbers: more tokens pass for the same collectives."""
    data = RunData(train=LENGTHS, evaluated_tokens=0)
    monkeypatch.setattr("launcher.simulation.sweep.run_data", lambda resolved: data)
    asked = question(resolved=run(stage=2, samples=1024), network="8x10")
    strong, weak = simulate_all(asked).points, simulate_all(dataclasses.replace(asked, mode="weak")).points
    assert weak[1].samples == 8192 and weak[1].tokens_per_s > 1.2 * strong[1].tokens_per_s
    folder = scale_file(tmp_path / "scale", (64, 2, weak[1].tokens_per_s), global_batch_size=8192)
    found = simulate_all(dataclasses.replace(asked, measured=folder)).points
    assert [each.tokens_per_s for each in found] == pytest.approx([each.tokens_per_s for each in strong])
    # The same of a run with other updates, here as large as the spec's.
    larger = run_folder(tmp_path / "run", run(stage=3, samples=1024), *(line(update, attempt=1, time=update, world_size=8) for update in range(1, 6)))
    assert [(each.global_batch_size, each.tokens_per_update) for each in read_anchors(larger)] == [(1024, None)]


def test_a_speed_beyond_its_collectives_scales_all(tmp_path):
    fast = scale_file(tmp_path / "scale", (8, 3, 1e12))
    found = simulate_all(question(measured=fast))
    assert found.points[0].tokens_per_s == pytest.approx(1e12)


def test_the_nearest_of_the_stage_counts(tmp_path):
    anchors = read_anchors(scale_file(tmp_path / "scale", (1, 2, 1.0), (8, 2, 2.0), (4, 3, 3.0)))
    assert [nearest(anchors, ranks, 2).ranks for ranks in (1, 2, 4, 64)] == [1, 1, 8, 8] and nearest(anchors, 64, 1).ranks == 8
    assert nearest(anchors, 1, 3).ranks == 4


def test_points_that_shared_cores_are_left_out(tmp_path):
    folder = scale_file(tmp_path / "scale", (1, 2, 1.0))
    result = json.loads((folder / "scale.json").read_text())
    result["points"].append({**result["points"][0], "ranks": 4, "oversubscribed": True})
    (folder / "scale.json").write_text(json.dumps(result))
    assert [anchor.ranks for anchor in read_anchors(folder)] == [1]


def test_a_pilot_and_a_run(tmp_path):
    resolved = run(ranks=4, stage=2)
    seconds = (9.0, 9.0, 2.0, 1.0, 2.0, 8.0, 2.0)
    lines = [line(at, attempt=1, time=at, world_size=4, seconds=took, allocated_bytes=7) for at, took in enumerate(seconds, start=1)]
    folder = run_folder(tmp_path / "run", resolved, *lines)
    (of_run,) = read_anchors(folder)
    assert (of_run.ranks, of_run.stage, of_run.tokens_per_s, of_run.on_cpu, of_run.method) == (4, 2, 50.0, False, "full")
    (folder / "pilot.json").write_text(json.dumps({"accelerator": "cpu", "measured": {"tokens_per_s": 123.0}}))
    for path in (folder, folder / "pilot.json"):
        (of_pilot,) = read_anchors(path)
        assert (of_pilot.ranks, of_pilot.tokens_per_s, of_pilot.on_cpu) == (4, 123.0, True)


@pytest.mark.parametrize("kind", ["nothing", "no point", "a damaged pilot", "a pilot without speed", "a run without updates", "a damaged result"])
def test_what_holds_no_speed(tmp_path, kind):
    folder = run_folder(tmp_path / "run", run())
    if kind == "nothing":
        folder = tmp_path / "nowhere"
    elif kind == "no point":
        folder = scale_file(tmp_path / "scale")
    elif kind.startswith("a damaged pilot"):
        (folder / "pilot.json").write_text("{")
    elif kind == "a pilot without speed":
        (folder / "pilot.json").write_text(json.dumps({"accelerator": "cpu", "measured": {"tokens_per_s": 0}}))
    elif kind == "a damaged result":
        (folder / "scale.json").write_text("{}")
    with pytest.raises(CheckpointError):
        read_anchors(folder)


def test_a_measurement_of_something_else_is_refused(tmp_path):
    anchors = read_anchors(run_folder(tmp_path / "run", run(method="lora"), *(line(update, attempt=1, time=update) for update in range(1, 6))))
    other = run()
    spec = dataclasses.replace(other.spec, model=dataclasses.replace(other.spec.model, model_name_or_path="another"))
    spec = dataclasses.replace(spec, train=dataclasses.replace(spec.train, precision="fp32"))
    with pytest.raises(SpecError) as raised:
        require_like(anchors, dataclasses.replace(other, spec=spec), on_cpu=False, accelerator="h100-80")
    told = ("the model was owner/model", "the method was lora", "the precision was bf16, here it is fp32", "it ran on CPU cores, and h100-80")
    assert all(part in str(raised.value) for part in told)


def test_every_measurement_has_to_be_of_the_spec(tmp_path):
    good, other = (scale_file(tmp_path / name, (8, 3, 1000.0)) for name in ("good", "other"))
    (other / "scale.json").write_text((other / "scale.json").read_text().replace("owner/model", "another"))
    with pytest.raises(SpecError, match="other was measured otherwise: the model was another") as raised:
        require_like((*read_anchors(good), *read_anchors(other)), run(), on_cpu=False, accelerator="h100-80")
    assert len(raised.value.problems) == 1
    # A file without the method was written before it was kept.
    for method, problem in (("lora", "the method was lora, here it is full"), ("", "")):
        text = (good / "scale.json").read_text().replace(f'"method": "{"" if method else "lora"}"', f'"method": "{method}"')
        (good / "scale.json").write_text(text)
        with pytest.raises(SpecError, match=problem) if problem else contextlib.nullcontext():
            require_like(read_anchors(good), run(), on_cpu=False, accelerator="h100-80")


def test_only_the_measured_point_itself_has_the_narrow_band(tmp_path):
    def width(measured: Path, stage: int) -> float:
        point = simulate_all(question(measured=measured, ranks=(8,), stages=(stage,))).points[0]
        return point.high_s / point.update_seconds - 1

    of_stage_3 = scale_file(tmp_path / "stage", (8, 3, 50_000.0))
    assert width(of_stage_3, 3) == pytest.approx(TIED) and width(of_stage_3, 2) > TIED + 0.001
    assert width(scale_file(tmp_path / "update", (8, 3, 50_000.0), global_batch_size=64), 3) > TIED + 0.001


def with_data(folder: Path, rows: int = 60) -> tuple[ResolvedSpec, str]:
    """A spec whose data are prepared in a cache, and their file."""
    said = [{"role": "user", "content": "word " * 3}, {"role": "assistant", "content": "x"}]
    content = [{"messages": [{**said[0], "content": "word " * (1 + number % 17)}, said[1]]} for number in range(rows)]
    data = section(write_rows(folder / "train.jsonl", content))
    source, cache = tiny_source(folder / "tiny"), folder / "cache"
    kept = prepared(data, source, cache)
    resolved = run(stage=2, samples=16)
    model = dataclasses.replace(resolved.spec.model, model_name_or_path=source.path)
    note_lengths(kept, data.training["train"], data, model, cache)
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, data=data, model=model), cache_dir=str(cache)), kept.arrow


def test_the_real_deal_of_the_real_lengths(tmp_path):
    resolved, arrow = with_data(tmp_path)
    assert prepared_files(resolved) == {"train": arrow}
    simulation = simulate_all(question(resolved=resolved, ranks=(2, 32)))
    assert simulation.deal.startswith("the prepared samples, the first 100 updates")
    assert [point.micro_steps for point in simulation.points] == [1, 1] and all(point.phases["idle"] > 0 for point in simulation.points)
    # A file that has changed since says nothing.
    (tmp_path / "train.jsonl").write_text("")
    assert prepared_files(resolved) == {}
    streamed = dataclasses.replace(resolved.spec, data=dataclasses.replace(resolved.spec.data, streaming=True))
    assert prepared_files(dataclasses.replace(resolved, spec=streamed)) == {}


def test_the_process_that_deals(tmp_path):
    resolved, arrow = with_data(tmp_path)
    folder, run_dir = DealsDir(tmp_path), RunDir(tmp_path)
    cases = tuple(Case(ranks=ranks, global_batch_size=16, tokens_per_update=None) for ranks in (3, 32))
    folder.asked.write_text(stored_text(DealsAsked(arrows={"train": arrow}, attention_share=1e-5, cases=cases)))
    run_dir.resolved.write_text(resolved.to_json())
    deals.main(run_dir)
    three, many = read_dealt(folder.dealt)
    mix = SampleMix.open({"train": arrow})
    sequence = UpdateSequence(mix, batch=resolved.spec.batch, train=resolved.spec.train, draws=resolved.spec.data.training)
    counts = count_run(sequence, mix, batch=resolved.spec.batch, world_size=3, share=AttentionShare(full=1e-5)).updates
    assert three.updates == len(counts) and three.samples == pytest.approx(counts.samples.mean()) and three.tokens == pytest.approx(counts.tokens.mean())
    assert 1 <= three.imbalance <= counts.imbalance.max() and three.step_imbalance >= three.imbalance and three.idle_ranks == 0
    assert many.ranks == 32 and many.idle_ranks >= 16 and many.micro_steps == 1


def test_a_file_of_samples_that_is_gone(tmp_path):
    with pytest.raises(FtError, match="gone"):
        real_deals(run(), {"train": str(tmp_path / "gone.arrow")}, 0.0, (Case(ranks=2, global_batch_size=4, tokens_per_update=None),))


def test_files_of_deals_that_are_none(tmp_path):
    paths = DealsDir(tmp_path)
    for text in ("", "[3]", "{"):
        paths.dealt.write_text(text)
        paths.asked.write_text(text)
        with pytest.raises(CheckpointError):
            read_dealt(paths.dealt)
        with pytest.raises(CheckpointError):
            load_deals(paths.asked)
