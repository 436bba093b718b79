"""Which splits `ftlaunch verify-loss` chooses, in which order they run, and the spec of each."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from ftcore.spec.errors import CheckpointError, SpecError, TrainingError
from ftcore.spec.resolved import Host
from ftcore.spec.schedule_lengths import schedule_problems
from ftcore.spec.verification import Leg, Split, VerificationDir
from ftcore.train.schedule import learning_rate_factor
from launcher.commands.verify_loss import parse_ranks
from launcher.progress import Progress
from launcher.resolve import Options, read_and_resolve
from launcher.verify_loss import check_folder, show_result
from launcher.verify_loss_request import Check, find_ground, first_slots, make_request, resolve_split
from launcher.verify_loss_splits import Ground, choose_splits, plan_legs
from tests.unit.test_cli import ftlaunch

GROUND = Ground(world_sizes=(1, 2, 8), stage=2, budget=4096, smallest_budget=1024, layout="packed")
BF16 = {(size, 0): "stage 0 is wrong" for size in (1, 2, 8)}


def names(ground: Ground, scope: str) -> list[str]:
    return [split.name for split in choose_splits(ground, scope).splits]


def test_default_and_quick() -> None:
    first = ["w1-zero0", "w1-zero0-reordered"]
    default = ["w1-zero0-small", "w8-zero2", "w2-zero1-large", "w2-zero3-small", "w8-zero2-padded", "w1-zero0-then-w8-zero3"]
    assert names(GROUND, "default") == first + default
    assert names(GROUND, "quick") == [*first, "w8-zero2", "w8-zero3-small", "w1-zero0-then-w8-zero3"]
    assert names(replace(GROUND, refused=BF16), "quick")[:2] == ["w1-zero1", "w1-zero1-reordered"]
    assert names(replace(GROUND, world_sizes=(1,)), "quick")[2:] == ["w1-zero2", "w1-zero3-small", "w1-zero0-then-w1-zero3"]


def test_all_is_the_cross_product_and_resumes_both_ways() -> None:
    found = choose_splits(replace(GROUND, refused=BF16), "all")
    crossed = {(split.world_size, split.zero_stage, split.micro_batch_tokens, split.layout) for split in found.splits if not split.then_world_size}
    for size in (1, 2, 8):
        for stage in (1, 2, 3):
            assert {(size, stage, budget, layout) for budget in (4096, 1024) for layout in ("packed", "padded")} <= crossed
    assert {(split.world_size, split.then_world_size) for split in found.splits if split.then_world_size} == {(1, 8), (8, 1)}
    assert [(left.name, left.reason) for left in found.left_out] == [("ZeRO stage 0 on any number of ranks", "stage 0 is wrong")]


def test_what_the_spec_leaves_no_room_for_is_said() -> None:
    found = choose_splits(replace(GROUND, layout="padded", smallest_budget=4096, refused={(1, 2): "no"}), "default")
    assert all(split.layout == "padded" for split in found.splits) and not any("small" in split.name for split in found.splits)
    assert [left.name for left in found.left_out] == ["ZeRO stage 2 on 1 ranks", "a smaller micro_batch_tokens", "packed"]
    assert len({split.name for split in found.splits}) == len(found.splits)


def reached(legs: tuple[Leg, ...]) -> Iterator[tuple[str, int, int]]:
    for leg in legs:
        for part in leg.parts:
            yield part.split, leg.world_size, part.until


@pytest.mark.parametrize("scope", ["quick", "default", "all"])
def test_every_split_is_trained_whole_by_its_own_ranks(scope: str) -> None:
    splits = choose_splits(GROUND, scope).splits
    legs = plan_legs(splits, 5)
    trained = list(reached(legs))
    assert trained[0] == ("w1-zero0", 1, 5), "the reference comes first"
    for split in splits:
        mine = [(size, until) for name, size, until in trained if name == split.name]
        whole = [(split.world_size, 2), (split.then_world_size, 5)] if split.then_world_size else [(split.world_size, 5)]
        assert mine == whole, split.name
    assert len(legs) == (4 if scope == "all" else 3 if scope == "default" else 2)


def check(tmp_path: Path, *sets: str, updates: int = 4, ranks: tuple[int, ...] = ()) -> Check:
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: {model_name_or_path: builtin:tiny-llama}\ndata: {train: {path: builtin:extraction/train}, eval: {path: builtin:extraction/eval}}\n")
    options = Options(spec_path=spec, sets=sets)
    return Check(options=options, resolved=read_and_resolve(options).resolved, updates=updates, scope="default", ranks=ranks)


def test_the_rules_decide_what_is_left_out(tmp_path: Path) -> None:
    bf16 = find_ground(check(tmp_path, "train.precision=bf16", "cluster.slots=4"))
    assert bf16.world_sizes == (1, 2, 4) and set(bf16.refused) == {(size, 0) for size in (1, 2, 4)} and "DeepSpeed" in bf16.refused[1, 0]
    offloaded = find_ground(check(tmp_path, "train.precision=fp32", "zero.stage=3", "zero.offload_param=cpu"))
    assert {stage for _, stage in offloaded.refused} == {0, 1, 2}
    # Given for stage 2, it is no reason against the others.
    coalesced = find_ground(check(tmp_path, "train.precision=fp32", "zero.stage=2", "zero.coalesce_grad_reduction=true"))
    assert coalesced.refused == {}


def test_ranks_that_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="3, 4 ranks don't fit 2 slots"):
        find_ground(check(tmp_path, "cluster.slots=2", ranks=(1, 3, 4)))
    # Quantised groups of two ranks rule out one rank in every stage.
    grouped = ("cluster.slots=4", "zero.stage=3", "zero.zero_hpz_partition_size=2")
    with pytest.raises(SpecError, match="no stage is allowed on 1, 3 ranks"):
        find_ground(check(tmp_path, *grouped, ranks=(1, 3)))
    assert find_ground(check(tmp_path, *grouped)).world_sizes == (2, 4)


def test_the_spec_of_a_split(tmp_path: Path) -> None:
    given = check(
        tmp_path, "train.precision=fp32", "schedule.warmup_ratio=0.5", "cluster.slots=2", "zero.stage=2", "method.type=lora", "method.lora_dropout=0.1"
    )
    request = make_request(given)
    assert len(request.notes) == 2 and "no warm-up" in request.notes[0] and "method.lora_dropout is 0.1" in request.notes[1]
    split = Split(name="x", world_size=1, zero_stage=0, micro_batch_tokens=2048, layout="padded", then_world_size=2, then_zero_stage=3)
    first, second = (resolve_split(given.resolved, split, 4, goes_on=goes_on) for goes_on in (False, True))
    assert (first.world_size, first.spec.zero.stage, first.spec.zero.coalesce_grad_reduction) == (1, 0, False)
    assert (second.world_size, second.spec.zero.stage, second.spec.zero.coalesce_grad_reduction) == (2, 3, True)
    for resolved in (first, second):
        spec = resolved.spec
        assert (spec.train.max_steps, spec.train.seed, spec.train.num_train_epochs) == (4, 42, None)
        assert (spec.batch.micro_batch_tokens, spec.batch.layout, spec.batch.global_batch_size) == (2048, "padded", 16)
        assert spec.data.held_out == {} and not spec.evaluation.eval_on_start and spec.logging.log_samples and spec.method.lora_dropout == 0.0
        assert spec.schedule.warmup_ratio == 0.0 and spec.optimizer == given.resolved.spec.optimizer


def test_a_schedule_and_a_profile_that_the_check_is_too_short_for(tmp_path: Path) -> None:
    sets = ("schedule.lr_scheduler_type=warmup_stable_decay", "schedule.warmup_steps=20", "schedule.decay_steps=100", "train.max_steps=200")
    given = check(tmp_path, *sets, "cluster.slots=2", "profiling.updates=1", "profiling.ranks=[1]")
    assert 1 in find_ground(given).world_sizes
    spec = resolve_split(given.resolved, make_request(given).splits[0], 4).spec
    assert not schedule_problems(spec.schedule, 4) and not spec.profiling.updates
    assert [learning_rate_factor(spec.schedule, update, 4) for update in range(4)] == [1.0] * 4


def test_first_slots() -> None:
    hosts = (Host(name="a", slots=2, slot_ids=(1, 3)), Host(name="b", slots=4))
    assert first_slots(hosts, 1) == (Host(name="a", slots=1, slot_ids=(1,)),)
    assert first_slots(hosts, 5) == (hosts[0], Host(name="b", slots=3))


def test_the_command_line_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    assert parse_ranks("4, 1,2") == (1, 2, 4) and parse_ranks("") == ()
    for text in ("0", "a", "1,,2", "-1"):
        with pytest.raises(click.UsageError, match="--ranks takes numbers"):
            parse_ranks(text)
    ended = ftlaunch(tmp_path, "verify-loss", "--quick", "--all")
    assert ended.returncode == 2 and "two scopes" in ended.stderr
    (tmp_path / "a.yaml").write_text("model: {}\n")
    ended = ftlaunch(tmp_path, "verify-loss", "a.yaml", "--spec", "a.yaml")
    assert ended.returncode == 2 and "given twice" in ended.stderr
    ended = ftlaunch(tmp_path, "verify-loss", "a.yaml")
    assert ended.returncode == 2 and "model_name_or_path" in ended.stderr and not (tmp_path / "verifications").exists()
    assert ftlaunch(tmp_path, "verify-loss", "--updates", "1").returncode == 2


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = check_folder("org/model", None), check_folder("org/model", None)
    assert one.path != two.path and one.path.parent == tmp_path / "verifications" and "model" in one.path.name
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(CheckpointError, match="not empty"):
        check_folder("m", tmp_path / "used")


def test_the_result_is_shown_and_a_difference_is_an_error(tmp_path: Path) -> None:
    paths, stream = VerificationDir(tmp_path), io.StringIO()
    paths.table.write_text("the table\n")
    paths.result.write_text(json.dumps({"failed": []}))
    show_result(paths, Progress(stream), tmp_path / "copy.json")
    assert "the table\nresult: " in stream.getvalue() and (tmp_path / "copy.json").read_text() == paths.result.read_text()
    paths.result.write_text(json.dumps({"failed": ["w2-zero2", "w2-zero3"]}))
    with pytest.raises(TrainingError, match="w2-zero2, w2-zero3 differ from the reference") as raised:
        show_result(paths, Progress(stream), None)
    assert raised.value.exit_status == 6
    with pytest.raises(CheckpointError, match="can't keep the result"):
        show_result(paths, Progress(stream), tmp_path / "none" / "copy.json")
