"""Which points a scaling test has, what each runs, and what its ranks share."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import Host
from launcher.memory.lengths import DataLengths
from launcher.scaling import machines as machines_module
from launcher.scaling.asked import parse_counts, parse_stages, require_given
from launcher.scaling.machines import busy_cores, check_ranks, default_ranks, find_machines, share_of, take_hosts, threads_of
from launcher.scaling.notes import notes_of, weak_notes
from launcher.scaling.points import grown, make_point, plan_points
from launcher.scaling.request import WEAK, default_tolerance
from tests.unit.scaled import here, machines, point, request, result

LENGTHS = DataLengths(samples=1600, tokens=1.6e5, supervised_tokens=1e5, squares=1e7, longest=200, histogram={}, origin="counted", is_assumed=False)


def test_numbers_of_ranks() -> None:
    assert parse_counts("4, 1,2,1", "--ranks") == (1, 2, 4) and parse_counts("", "--ranks") == ()
    with pytest.raises(SpecError) as caught:
        parse_counts("0,-2,a,1.5,,100001", "--ranks")
    told = [problem.what for problem in caught.value.problems]
    assert told == [f"{text} is no number of ranks" for text in ("'a'", "'1.5'", "''", "0", "-2", "100,001")]


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf")])
def test_lists_without_a_number_and_tolerances_that_are_none_are_refused(tolerance: float) -> None:
    with pytest.raises(SpecError) as caught:
        require_given({"ranks": "", "stages": "0", "simulate": " "}, tolerance)
    assert [problem.where for problem in caught.value.problems] == ["--ranks", "--simulate", "--tolerance"]
    require_given({"ranks": "1"}, 0.0)


def test_more_numbers_than_a_table_holds_are_refused() -> None:
    with pytest.raises(SpecError, match="1,001 numbers of ranks"):
        parse_counts(",".join(map(str, range(1, 1002))), "--simulate")


def test_stages() -> None:
    assert parse_stages("3,0,0") == (0, 3)
    with pytest.raises(SpecError) as caught:
        parse_stages("4,-1,x")
    assert [problem.what for problem in caught.value.problems] == ["'x' is no ZeRO stage", "'4' is no ZeRO stage", "'-1' is no ZeRO stage"]


def test_the_grid_in_its_order() -> None:
    planned = plan_points(request(ranks=(1, 2, 4), stages=(0, 3)), machines(), 1)
    assert [each.name for each in planned] == ["w1-zero0", "w2-zero0", "w4-zero0", "w1-zero3", "w2-zero3", "w4-zero3"]
    assert [each.cut.world_size for each in planned[:3]] == [1, 2, 4] and planned[3].cut.spec.zero.stage == 3


def test_a_strong_point_keeps_the_update_and_the_samples() -> None:
    resolved = here(samples=128, method="lora")
    resolved = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, method=dataclasses.replace(resolved.spec.method, lora_dropout=0.1)))
    wanted = make_point(request(resolved), machines(), 1, 4, 2)
    spec = wanted.cut.spec
    assert (spec.batch.global_batch_size, spec.train.max_steps, spec.train.num_train_epochs) == (128, 11, None)
    assert spec.method.lora_dropout == 0.0 and wanted.whole.spec.method.lora_dropout == 0.1
    assert spec.data.eval is None and spec.checkpoint.save_steps == 0 and spec.logging.logging_steps == 1 and spec.logging.phases
    assert spec.cluster.environment == {"OMP_NUM_THREADS": "1"} and spec.cluster.slots == 4
    # A resume of it would find what it was started with, and a coalescing that follows from its stage.
    assert make_point(request(resolved), machines(), None, 2, 1).cut.spec.zero.coalesce_grad_reduction is False


@pytest.mark.parametrize(("samples", "tokens", "most"), [(16, None, (64, None)), (None, 4096, (None, 16384))])
def test_a_weak_point_has_an_update_that_grows_with_the_ranks(samples: int | None, tokens: int | None, most: tuple[int | None, int | None]) -> None:
    resolved = here()
    batch = dataclasses.replace(resolved.spec.batch, global_batch_size=samples, tokens_per_update=tokens)
    resolved = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, batch=batch))
    spec = make_point(request(resolved, mode=WEAK), machines(), 1, 4, 2).cut.spec
    assert (spec.batch.global_batch_size, spec.batch.tokens_per_update) == most
    assert make_point(request(resolved, mode=WEAK, ranks=(2, 4, 6)), machines(), 1, 6, 2).cut.spec.batch == grown(batch, 3, 1)
    assert spec.batch.micro_batch_tokens == batch.micro_batch_tokens and spec.optimizer.learning_rate == resolved.spec.optimizer.learning_rate


def test_a_weak_update_is_a_whole_number() -> None:
    with pytest.raises(SpecError, match="does not grow to 3 ranks by a whole number"):
        plan_points(request(here(samples=7), mode=WEAK, ranks=(2, 3)), machines(), 1)


def test_more_ranks_than_cores_are_marked() -> None:
    share = share_of(machines(), (Host(name="localhost", slots=8),), 1)
    assert (share.cores, share.oversubscribed, share.devices, share.accelerators) == (2, True, 2, None)
    # Threads count as ranks do: one rank that takes both cores leaves none for another.
    assert share_of(machines(), (Host(name="localhost", slots=1),), 2).cores == 2
    both = share_of(machines(), (Host(name="localhost", slots=2),), 2)
    assert (both.cores, both.oversubscribed, both.devices) == (2, True, 1)
    fits = share_of(machines(cores=16), (Host(name="localhost", slots=8),), 2)
    assert (fits.cores, fits.oversubscribed, fits.devices) == (16, False, 8)


def test_accelerators_take_a_rank_each() -> None:
    share = share_of(machines(8, on_accelerators=True), (Host(name="localhost", slots=8),), None)
    assert (share.accelerators, share.cores, share.oversubscribed, share.devices) == (8, None, False, 8)


def test_hosts_that_nothing_is_known_of() -> None:
    share = share_of(machines(), (Host(name="elsewhere", slots=4),), 1)
    assert (share.cores, share.oversubscribed, share.devices) == (None, False, 4)


def test_threads_let_the_largest_point_fill_the_cores() -> None:
    assert threads_of(machines(cores=16), 4, None, {}) == 4 and threads_of(machines(cores=2), 8, None, {}) == 1
    assert threads_of(machines(cores=16), 4, 3, {"OMP_NUM_THREADS": "2"}) == 3
    assert threads_of(machines(cores=16), 4, None, {"OMP_NUM_THREADS": "2"}) == 2
    assert threads_of(machines(cores=16), 4, None, {"OMP_NUM_THREADS": "odd"}) == 4
    assert threads_of(machines(8, on_accelerators=True), 8, None, {}) is None


def test_a_machine_that_others_use(tmp_path: Path) -> None:
    found = busy_cores(seconds=0.01)
    assert found is None or 0.0 <= found <= (os.cpu_count() or 1)
    odd = tmp_path / "stat"
    assert busy_cores(odd, seconds=0.0) is None
    odd.write_text("cpu  1 2 3 4 5 6 7 8\n")
    assert busy_cores(odd, seconds=0.0) is None
    odd.write_text("nonsense\n")
    assert busy_cores(odd, seconds=0.0) is None
    told = notes_of(request(), result(point(1, busy_cores=0.1), point(2, busy_cores=1.6)), LENGTHS)
    assert any(note.startswith("NOT A QUIET MACHINE: other processes kept up to 1.6 cores busy when w2-zero2 began") for note in told)
    assert not any("QUIET" in note for note in notes_of(request(), result(point(1, busy_cores=0.1)), LENGTHS))


def test_default_ranks() -> None:
    assert default_ranks(machines(1)) == (1,) and default_ranks(machines(2)) == (1, 2) and default_ranks(machines(6)) == (1, 2, 4, 6)
    assert default_ranks(machines(8, hosts=2, is_here=False)) == (1, 2, 4, 8, 16)


def test_hosts_are_filled_one_after_the_other() -> None:
    two = machines(4, hosts=2, is_here=False)
    assert [(host.name, host.slots) for host in take_hosts(two, 6)] == [("w0", 4), ("w1", 2)]
    assert [(host.name, host.slots) for host in take_hosts(machines(), 8)] == [("localhost", 8)]


def test_ranks_that_can_not_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    check_ranks(machines(), (1, 2, 32))
    with pytest.raises(SpecError, match="1000 ranks are more than the 32 ranks, 16 on each of the 2 cores"):
        check_ranks(machines(), (1, 1000))
    with pytest.raises(SpecError, match="16 ranks are more than the 8 slots"):
        check_ranks(machines(4, hosts=2, is_here=False), (8, 16))
    monkeypatch.setattr(machines_module, "local_accelerators", lambda: 4)
    with pytest.raises(SpecError, match="8 ranks are more than the 4 accelerators"):
        check_ranks(machines(2, on_accelerators=True), (4, 8))


def test_machines_as_preflight_heard_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    resolved = dataclasses.replace(here(), hosts=(Host(name="a", slots=2), Host(name="b", slots=2)))
    heard = find_machines(resolved, {"a": {"cores": 8, "accelerators": [{"name": "H100"}]}, "b": {"cores": 4, "accelerators": []}})
    assert heard.cores == {"a": 8, "b": 4} and not heard.on_accelerators and not heard.is_here
    monkeypatch.delenv("DS_ACCELERATOR")
    assert find_machines(resolved, {"a": {"cores": 8, "accelerators": [{"name": "H100"}]}, "b": {}}).on_accelerators
    alone = find_machines(here(), {})
    assert alone.is_here and list(alone.cores) == ["localhost"]


def test_jobs_take_part_of_a_host_or_whole_hosts() -> None:
    jobs = request(scheduler=SchedulerSection(slots_per_node=4), ranks=(1, 2, 4, 8), on_cpu=True)
    shapes = [each.scheduler for each in plan_points(jobs, machines(), 1)]
    assert [(shape.nodes, shape.slots_per_node) for shape in shapes] == [(1, 1), (1, 2), (1, 4), (2, 4)]
    assert plan_points(jobs, machines(), 1)[3].cut.world_size == 8
    assert (plan_points(jobs, machines(), 1)[3].share.cores, plan_points(jobs, machines(), 2)[3].share.oversubscribed) == (8, True)
    on_accelerators = plan_points(dataclasses.replace(jobs, on_cpu=False), machines(), None)[3].share
    assert (on_accelerators.accelerators, on_accelerators.cores) == (8, None)
    with pytest.raises(SpecError, match="6 ranks are no whole hosts of 4 slots"):
        plan_points(dataclasses.replace(jobs, ranks=(6,)), machines(), 1)


def test_tolerances() -> None:
    assert default_tolerance("fp32", "adamw") == 1e-5 and default_tolerance("bf16", "adamw") > 1e-3
    assert default_tolerance("fp32", "adamw_8bit") == default_tolerance("bf16", "adamw")


# L03: updates are counted from the samples of an update, which grow with the ranks.
def test_what_happens_to_the_schedule_is_said() -> None:
    resolved = here(samples=16)
    spec = resolved.spec
    train = dataclasses.replace(spec.train, max_steps=None, num_train_epochs=1.0)
    schedule = dataclasses.replace(spec.schedule, warmup_ratio=0.1)
    resolved = dataclasses.replace(resolved, spec=dataclasses.replace(spec, train=train, schedule=schedule))
    done = result(point(1, global_batch_size=16, run_updates=100), point(4, global_batch_size=64, run_updates=25), mode=WEAK)
    text = "\n".join(weak_notes(resolved, 1, done, LENGTHS))
    assert "from the spec's own of 16 samples on 1 rank" in text
    assert "4 ranks: an update of 64 samples; the run has 25 updates in place of 100, and 3 of them warm up in place of 10" in text
    assert f"learning_rate stayed {spec.optimizer.learning_rate:g}" in text
    kept = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, train=dataclasses.replace(train, max_steps=100, num_train_epochs=None)))
    done = result(point(4, global_batch_size=64, run_updates=100), mode=WEAK)
    assert "train.max_steps keeps the run at 100 updates, which see 4 times the samples, and 10 of them warm up" in "\n".join(
        weak_notes(kept, 1, done, LENGTHS)
    )


def test_notes_say_what_a_reader_must_know() -> None:
    lora = here(method="lora")
    lora = dataclasses.replace(lora, spec=dataclasses.replace(lora.spec, method=dataclasses.replace(lora.spec.method, lora_dropout=0.1)))
    done = result(point(2, threads=1), point(4, threads=1, oversubscribed=True), point(1, stage=3, threads=1))
    text = "\n".join(notes_of(request(lora), done, LENGTHS))
    assert "OMP_NUM_THREADS=1" in text and "oversubscribed: 4 ranks" in text and "dropout was 0 in place of 0.1" in text
    assert "relative to the fewest ranks that were measured (stage 2: 2, stage 3: 1)" in text and "each stage is set against its own" in text
    epochs = dataclasses.replace(lora.spec, train=dataclasses.replace(lora.spec.train, max_steps=None, num_train_epochs=1.0))
    guessed = dataclasses.replace(LENGTHS, is_assumed=True, origin="assumed, no file")
    assert "is a guess: assumed, no file" in "\n".join(notes_of(request(dataclasses.replace(lora, spec=epochs)), done, guessed))
