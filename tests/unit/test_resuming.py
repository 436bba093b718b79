"""What `--resume` may change, what it refuses, and that a kill at any moment of the change leaves a run that goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError, ClusterError, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import TrainingSet
from launcher import run_change
from launcher.cli import main
from launcher.ds_config import render_ds_config
from launcher.folder_files import remove_other_scripts
from launcher.resolve import read_and_resolve
from launcher.resuming import changes, resolve_again
from launcher.run_change import change_run, kept_path, settled_record, tell_change
from launcher.run_folder import write_files
from launcher.spec_source import Options
from launcher.unchanged import load_unchanged, record_path, record_text, require_ds_config

SPEC = """model: {model_name_or_path: 'builtin:tiny-llama'}
data: {train: {path: 'builtin:extraction/train'}}
train: {precision: %s, max_steps: 4}
cluster: {slots: 2}
zero: {stage: %d%s}
"""


def started(tmp_path: Path, *, precision: str = "fp32", stage: int = 2, more: str = "") -> ResolvedSpec:
    (tmp_path / "spec.yaml").write_text(SPEC % (precision, stage, more))
    return read_and_resolve(Options(spec_path=tmp_path / "spec.yaml")).resolved


def test_another_stage_and_other_hosts(tmp_path: Path) -> None:
    """F12: 4 ranks go on with a run of 2; nothing of the batch changes."""
    before = started(tmp_path)
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    after = resolve_again(before, Options(hosts=tmp_path / "hosts", zero_stage=1), 3)
    assert after.spec.zero.stage == 1 and not after.spec.zero.coalesce_grad_reduction and after.world_size == 4
    assert after.spec.batch == before.spec.batch
    assert after.sources["zero.stage"] == "--zero (resume, attempt 3)" and after.sources["zero.coalesce_grad_reduction"] == "derived"
    assert after.sources["cluster.hosts"] == "--hosts (resume, attempt 3)" and "cluster.slots" not in after.sources
    assert set(changes(before, after)) == {"cluster.hosts", "cluster.slots", "hosts", "world_size", "zero.stage", "zero.coalesce_grad_reduction"}
    again = resolve_again(after, Options(zero_stage=3, include="localhost:1,2"), 4)
    assert again.hosts == (Host(name="localhost", slots=2, slot_ids=(1, 2)),) and again.spec.zero.stage == 3
    assert again.sources["cluster.hosts"] == "--hosts (resume, attempt 3)"
    assert resolve_again(after, Options(zero_stage=1), 4) is after


def test_values_that_do_not_change_what_is_trained(tmp_path: Path) -> None:
    before = started(tmp_path, more=", coalesce_grad_reduction: false")
    sets = ("checkpoint.save_steps=5", "logging.logging_steps=2", "batch.micro_batch_tokens=2048", "cluster.slots=1", "zero.coalesce_grad_reduction=null")
    after = resolve_again(before, Options(sets=sets), 2)
    assert (after.spec.checkpoint.save_steps, after.spec.logging.logging_steps, after.spec.batch.micro_batch_tokens, after.world_size) == (5, 2, 2048, 1)
    assert after.spec.zero.coalesce_grad_reduction and after.spec.train == before.spec.train
    assert resolve_again(before, Options(zero_stage=3), 2).spec.zero.coalesce_grad_reduction is False


def test_what_is_recomputed_may_change_and_nothing_else_of_training(tmp_path: Path) -> None:
    """A run that ran out of memory goes on with its layers recomputed: gradients are the same."""
    before = started(tmp_path)
    after = resolve_again(before, Options(sets=("train.gradient_checkpointing=full",)), 2)
    assert after.spec.train == replace(before.spec.train, gradient_checkpointing="full")
    assert after.sources["train.gradient_checkpointing"] == "--set (resume, attempt 2)"
    assert set(changes(before, after)) == {"train.gradient_checkpointing"}


def test_what_a_run_was_started_with_can_be_turned_off(tmp_path: Path) -> None:
    """The keys that go with a patience or with profiling stay as they are."""
    held_out = SPEC.replace("train'}}", "train'}, eval: {path: 'builtin:extraction/eval'}}") % ("fp32", 2, "")
    ways = "checkpoint: {metric_for_best_model: loss}\nevaluation: {eval_steps: 1, early_stopping_patience: 2, early_stopping_threshold: 0.01}\n"
    (tmp_path / "spec.yaml").write_text(f"{held_out}{ways}profiling: {{updates: 2, start_update: 2, ranks: [1]}}\n")
    before = read_and_resolve(Options(spec_path=tmp_path / "spec.yaml")).resolved
    after = resolve_again(before, Options(sets=("evaluation.early_stopping_patience=0", "profiling.updates=0")), 2)
    assert (after.spec.evaluation.early_stopping_patience, after.spec.evaluation.early_stopping_threshold, after.spec.profiling.updates) == (0, 0.01, 0)
    assert resolve_again(after, Options(zero_stage=3), 3).spec.profiling.ranks == (1,)
    assert resolve_again(before, Options(include="localhost:0"), 2).spec.profiling == before.spec.profiling
    with pytest.raises(SpecError, match="there is no rank 1 in a run of 1 ranks"):
        resolve_again(before, Options(include="localhost:0", sets=("profiling.updates=1",)), 2)


def test_all_that_is_refused_comes_at_once(tmp_path: Path) -> None:
    before = started(tmp_path, precision="bf16", more=", offload_optimizer: cpu")
    sets = ("train.max_steps=9", "optimizer.learning_rate=1", "train.seed=1", "environment.x=1", "logging.nothing=1", "odd")
    with pytest.raises(SpecError) as caught:
        resolve_again(before, Options(sets=sets, zero_stage=0, include="nohost"), 2)
    told = str(caught.value)
    for words in (
        "train.max_steps can't change when a run goes on: the learning rate of every update depends on the length of the run",
        "optimizer.learning_rate can't change",
        "train.seed can't change when a run goes on: the order of the samples",
        "environment.x can't change when a run goes on: a run goes on as it was started",
        "logging.nothing",
        "`key=value` expected, got",
        "ZeRO stage 0 with bf16 is wrong",
        "offload_optimizer needs stage 1 or higher",
        "no host 'nohost'",
        "resume with another --zero or other hosts",
    ):
        assert words in told, words


def test_data_that_are_gone(tmp_path: Path) -> None:
    before = started(tmp_path)
    data = replace(before.spec.data, train=TrainingSet(path=str(tmp_path / "gone.jsonl")))
    with pytest.raises(SpecError, match=r"data.train.path: no such file: .*gone.jsonl\n +fix: put it back where it was"):
        resolve_again(replace(before, spec=replace(before.spec, data=data)), Options(), 2)


def test_a_wrong_hostfile(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="can't read this hostfile"):
        resolve_again(started(tmp_path), Options(hosts=tmp_path / "missing"), 2)
    with pytest.raises(SpecError, match="leaves no slot"):
        resolve_again(started(tmp_path), Options(exclude="localhost"), 2)


def test_rules_about_the_number_of_ranks(tmp_path: Path) -> None:
    """F12: a number of ranks that can't be is refused before anything is loaded."""
    before = started(tmp_path, stage=3, more=", zero_hpz_partition_size: 2")
    with pytest.raises(SpecError, match="3 ranks don't divide into groups of 2"):
        resolve_again(before, Options(sets=("cluster.slots=3",)), 2)


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def folder(tmp_path: Path, before: ResolvedSpec) -> RunDir:
    run_dir = RunDir(tmp_path / "run")
    files = {run_dir.ds_config: render_ds_config(before), run_dir.resolved: before.to_json()}
    write_files({**files, record_path(run_dir): record_text(files)})
    run_dir.attempt_logs(1).mkdir(parents=True)
    return run_dir


def steps_until(limit: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets `limit` files change, then kills."""
    left = [limit]

    def counted(files: dict[Path, str]) -> None:
        for path, text in files.items():
            spend()
            write_files({path: text})

    def spend() -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1

    unlink = Path.unlink

    def counted_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == "ds_config.json":
            spend()
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(run_change, "write_files", counted)
    monkeypatch.setattr(Path, "unlink", counted_unlink)
    yield
    monkeypatch.undo()


def test_a_kill_after_each_write_leaves_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = started(tmp_path)
    after = resolve_again(before, Options(zero_stage=3), 2)
    seen = []
    for limit in range(10):
        place = tmp_path / str(limit)
        place.mkdir()
        run_dir = folder(place, before)
        killer = steps_until(limit, monkeypatch)
        next(killer)
        was_killed = False
        try:
            change_run(run_dir, before, after)
        except Killed:
            was_killed = True
        next(killer, None)
        now = load_unchanged(run_dir)
        require_ds_config(run_dir, now)
        assert now in (before, after) and run_dir.ds_config.read_text() == render_ds_config(now)
        write_files(settled_record(run_dir))
        assert record_path(run_dir).read_text() == record_text({path: path.read_text() for path in (run_dir.ds_config, run_dir.resolved)})
        told = tell_change(run_dir, now)
        assert bool(told) == (now == after) and ("zero.stage 2 -> 3" in told or now == before)
        seen.append(now == after)
        if not was_killed:
            break
    assert seen == [False] * 5 + [True] * 2
    assert load_resolved(kept_path(run_dir, run_dir.resolved)) == before
    event = json.loads(run_dir.events.read_text())
    assert (event["event"], event["zero_stage_before"], event["zero_stage"], event["attempt"]) == ("resumed_with", 2, 3, 2)


def test_the_files_of_the_last_launch_are_kept(tmp_path: Path) -> None:
    before = started(tmp_path)
    run_dir = folder(tmp_path, before)
    third, first = (resolve_again(before, Options(zero_stage=stage), 2) for stage in (3, 1))
    change_run(run_dir, before, third)
    change_run(run_dir, third, first)
    assert load_resolved(run_dir.path / "resolved.attempt_1.json") == before and "zero.stage 2 -> 1" in tell_change(run_dir, first)
    change_run(run_dir, first, before)
    assert tell_change(run_dir, before) == ""
    kept_path(run_dir, run_dir.resolved).write_text("{")
    assert "is damaged" in tell_change(run_dir, before)
    record_path(run_dir).unlink()
    assert settled_record(run_dir) == {}


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    before = started(tmp_path)
    run_dir = folder(tmp_path, before)
    run_dir.ds_config.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="it is no text"):
        change_run(run_dir, before, before)


def test_scripts_of_hosts_that_are_gone(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"node_{number:02d}.sh").touch()
    os.mkdir(tmp_path / "node_03.sh")
    remove_other_scripts(RunDir(tmp_path), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node_00.sh", "node_03.sh"]


TWO_SETS = "{train_sets: {a: {path: 'builtin:extraction/train'}, b: {path: 'builtin:extraction/eval', epochs: 2}}}"
MIX = SPEC.replace("{train: {path: 'builtin:extraction/train'}}", TWO_SETS)


def started_with_a_mix(tmp_path: Path) -> ResolvedSpec:
    (tmp_path / "spec.yaml").write_text(MIX % ("fp32", 2, ""))
    return read_and_resolve(Options(spec_path=tmp_path / "spec.yaml")).resolved


def test_data_change_where_that_was_allowed_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = started_with_a_mix(tmp_path)
    (tmp_path / "more.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    monkeypatch.chdir(tmp_path)
    options = Options(sets=("data.train_sets.b.epochs=3", "data.train_sets.c.path=more.jsonl", "data.max_length=64"))
    with pytest.raises(SpecError) as caught:
        resolve_again(before, options, 2)
    assert [problem.where for problem in caught.value.problems] == ["data.train_sets.b.epochs", "data.train_sets.c.path", "data.max_length"]
    assert "the position in the data would mean other samples" in str(caught.value) and "or add --allow-data-change" in str(caught.value)
    after = resolve_again(before, options, 2, other_data=True)
    assert after.spec.data.train_sets["b"].epochs == 3 and after.spec.data.train_sets["c"].path == str(tmp_path / "more.jsonl")
    assert after.spec.data.train_sets["a"] == before.spec.data.train_sets["a"] and after.spec.data.max_length == 64
    assert after.sources["data.max_length"] == "--set (resume, attempt 2)"
    assert set(changes(before, after)) >= {"data.train_sets.b.epochs", "data.train_sets.c.path", "data.max_length"}
    with pytest.raises(SpecError, match=r"train\.seed can't change"):
        resolve_again(before, Options(sets=("train.seed=9",)), 2, other_data=True)
    with pytest.raises(SpecError, match="nothing_there"):
        resolve_again(before, Options(sets=("data.train_sets.a.path=nothing_there.jsonl",)), 2, other_data=True)


@pytest.mark.parametrize("arguments", [["--allow-data-change"], ["submit", "--allow-data-change", "spec.yaml"]])
def test_allowing_other_data_goes_with_a_resume(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2 and "it goes with --resume RUN" in capsys.readouterr().err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("verb", ["launch", "submit"])
def test_the_help_says_what_becomes_of_the_order(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("update's number, learning rate and optimizer state", "order is that of the new data", "rows may be seen again or never"):
        assert words in text
