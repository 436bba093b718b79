"""Runs that are slow, or whose numbers or memory go wrong while they train: what the doctor makes of each, and that a good run has nothing."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.resolved import Host
from launcher.findings.examine import examine
from launcher.findings.finding import NOTE, SLOW, WRONG, Finding
from launcher.findings.seen import look
from launcher.findings.standing_still import standing_still
from launcher.findings.text import render
from tests.unit.recorded_runs import BUSY, GIB, RecordedRun


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run", ranks=min(2, len(os.sched_getaffinity(0))))


def found(run: RecordedRun) -> dict[str, Finding]:
    """By kind, in the order in which they are told."""
    return {each.kind: each for each in examine(run.write()).findings}


def waiting(phase: str, share: float) -> dict[str, float]:
    """A run that spends so much of its time on a phase."""
    return {name: value * (1 - share) for name, value in BUSY.items()} | {phase: share + (0.05 * (1 - share) if phase == "other" else 0.0)}


def test_a_healthy_run_says_so_and_what_it_looked_at(run: RecordedRun) -> None:
    run.trained(20)
    run.ended(0, "done")
    page = examine(run.write())
    text = render(page)
    assert page.findings == () and page.state == "finished" and "nothing stands out: the run is healthy" in text
    assert "metrics.jsonl: updates 1 to 20" in text and "phases of 18 updates: backward 60%, forward 30%" in text
    assert page.missing == ()


@pytest.mark.parametrize(
    ("phase", "kind", "section", "values", "knob"),
    [
        ("data_wait", "slow_data", "data", {"prefetch_updates": 2}, "--set data.prefetch_updates=4"),
        ("communication", "slow_communication", "zero", {"stage": 3}, "--zero 2"),
        ("checkpoint", "slow_checkpoints", "checkpoint", {"save_async": False, "save_steps": 5}, "--set checkpoint.save_async=true"),
        ("evaluation", "slow_evaluation", "evaluation", {"eval_steps": 5}, "--set evaluation.eval_steps=20"),
        ("other", "slow_other", "logging", {}, "--set logging.logging_steps=10"),
        ("idle", "imbalance", "batch", {}, "--set batch.global_batch_size=32"),
    ],
)
def test_a_phase_that_takes_too_much_has_its_knob(phase: str, kind: str, section: str, values: dict[str, Any], knob: str, run: RecordedRun) -> None:
    run.set(section, **values)
    run.trained(20, shares=waiting(phase, 0.3))
    run.ended(0, "done")
    finding = found(run)[kind]
    assert finding.severity == SLOW and "30%" in finding.what.replace("34%", "30%") and finding.knobs[0].options == knob
    assert finding.evidence[0].file == "metrics.jsonl"


def test_a_knob_that_leaves_one_evaluation_says_so(run: RecordedRun) -> None:
    run.set("evaluation", eval_steps=20)
    run.trained(20, shares=waiting("evaluation", 0.3))
    assert found(run)["slow_evaluation"].knobs[0].gives == "a quarter of the evaluations"
    run.set("evaluation", eval_steps=40)
    assert found(run)["slow_evaluation"].knobs[0].gives == "only the evaluation at the end", "160 updates are more than the run's 100"


def test_those_that_cost_most_come_first(run: RecordedRun) -> None:
    run.trained(20, shares={"forward": 0.3, "backward": 0.2, "data_wait": 0.1, "checkpoint": 0.4})
    run.ended(0, "done")
    assert list(found(run))[:2] == ["slow_checkpoints", "slow_data"]


@pytest.mark.parametrize(
    ("late", "cost", "phases", "words"),
    [
        ("backward", 1.0, {"forward": 0.5, "backward": 0.5}, "its device or host is slower"),
        ("backward", 3.0, {"forward": 0.3, "backward": 0.6}, "it was dealt more tokens"),
        ("data_wait", 1.0, {"forward": 0.3, "backward": 0.6}, "it waits for its data"),
    ],
)
def test_a_slow_rank_by_the_ranks_own_lines(late: str, cost: float, phases: dict[str, float], words: str, tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", ranks=2)
    mine = {"caused_idle_seconds": 0.3, "late_phase": late, "cost": cost, "phases": phases}
    other = {"caused_idle_seconds": 0.0, "late_phase": "", "cost": 1.0}
    run.trained(20, shares=waiting("idle", 0.15), of_rank=[other, mine])
    run.ended(0, "done")
    finding = found(run)["slow_rank"]
    assert (finding.rank, finding.host, finding.phase) == (1, "localhost", late) and words in finding.what and "30% of the time" in finding.what


def test_a_slow_rank_that_the_run_told_of(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", ranks=2)
    run.trained(20)
    run.event("finding", kind="slow_rank", update=9, what="rank 1 is slow", rank=1, host="w2", phase="forward", share=0.25, cause="device", causes=[])
    run.ended(0, "done")
    finding = found(run)["slow_rank"]
    assert (finding.rank, finding.host, finding.phase) == (1, "w2", "forward") and "25% of the time" in finding.what
    run.event("launch_started", attempt=2, world_size=2)
    run.trained(20, attempt=2)
    assert "slow_rank" not in found(run), "it went on without that host"


def test_slower_than_planned(run: RecordedRun) -> None:
    run.trained(20, seconds=3.0)
    run.ended(0, "done")
    assert "3 s, 3.0 times the 1 s of the plan" in found(run)["slower_than_planned"].what


def test_a_run_that_logs_each_tenth_update_is_no_slower_for_it(run: RecordedRun) -> None:
    run.trained(20, phase_updates=10, window_train_seconds=10.0, phase_seconds=10.0)
    run.ended(0, "done")
    assert "slower_than_planned" not in found(run)


def test_a_plan_that_assumed_other_lengths_is_counted_for_the_runs_own(run: RecordedRun) -> None:
    forecast = run.memory["forecast"]
    forecast["tokens_an_update"] = 2000.0
    run.trained(20, seconds=3.0)
    run.ended(0, "done")
    assert "slower_than_planned" not in found(run), "1.9 s for updates of twice the tokens"
    forecast["tokens_an_update"] = 3000.0
    behind = found(run)["slower_than_planned"]
    assert "2.3 times the 1.3 s of the plan" in behind.what and behind.details[0] == "counted for the 4,000 tokens of an update; the plan had 3,000"


def test_a_host_without_processors_for_its_ranks(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", ranks=2)
    run.trained(20, of_rank=[{"held_up_seconds": 0.3}, {"held_up_seconds": 0.1}])
    run.ended(0, "done")
    finding = found(run)["busy_host"]
    assert finding.severity == SLOW and finding.host == "localhost" and finding.what.startswith("20% of the time ranks on localhost stood still")
    calm = RecordedRun(tmp_path / "calm", ranks=2)
    calm.trained(20, of_rank=[{"held_up_seconds": 0.05}, {"held_up_seconds": 0.01}])
    assert "busy_host" not in found(calm)


def test_padding_and_small_micro_steps(run: RecordedRun) -> None:
    run.set("batch", layout="padded")
    run.trained(20, computed_tokens=8000, micro_steps=8)
    run.ended(0, "done")
    kinds = found(run)
    assert "50% of what is computed is padding" in kinds["padding"].what and kinds["padding"].knobs[0].options == "--set batch.layout=packed"
    assert kinds["small_micro_steps"].knobs[0].options == "--set batch.micro_batch_tokens=32768"


def test_more_ranks_than_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    run = RecordedRun(tmp_path / "run", ranks=cores + 2)
    run.trained(6)
    assert f"{cores + 2} ranks compute on localhost, which has {cores} cores" in found(run)["oversubscribed"].what
    run.hosts = (Host(name="elsewhere", slots=cores + 2),)
    assert "oversubscribed" not in found(run), "the cores of other hosts are not known"


@pytest.mark.parametrize(("kind", "severity"), [("spike", NOTE), ("divergence", WRONG), ("oscillation", WRONG), ("plateau", WRONG)])
def test_what_the_loss_watch_told(kind: str, severity: str, run: RecordedRun) -> None:
    run.trained(20)
    causes = [{"name": "clipping", "suspected": False, "what": "norm 1"}, {"name": "learning_rate", "suspected": True, "what": "too high"}]
    for update in (9, 15):
        run.event("finding", rank=0, kind=kind, update=update, what=f"{kind} at update {update}", causes=causes)
    run.ended(0, "done")
    finding = found(run)[kind]
    assert (finding.severity, finding.update) == (severity, 9)
    assert finding.causes == ("likely: too high", "less likely: norm 1") and finding.details == ("2 times in all, last at update 15",)


def test_a_leak_that_the_memory_watch_told(run: RecordedRun) -> None:
    for update in range(20):
        run.trained(1, peak=GIB + update * 2**26)
    run.event(
        "finding",
        rank=0,
        kind="memory_leak",
        update=19,
        what="host memory grows",
        causes=[{"name": "tensors", "suspected": True, "what": "21 x float32 [128, 64]"}],
    )
    finding = found(run)["memory_leak"]
    assert (finding.rank, finding.severity) == (0, WRONG) and finding.causes == ("likely: 21 x float32 [128, 64]",)
    assert finding.details[0].startswith("at this rate a rank's 4.0 GiB are full about 29 updates on, in 0:00:29")


def test_a_leak_by_the_peaks_alone_and_none_without(run: RecordedRun) -> None:
    for update in range(90):
        run.trained(1, peak=GIB + update * 2**20)
    assert "grows by 1 MiB an update" in found(run)["memory_leak"].what
    for steps, told in ((0, ["50"]), (8, ["4"]), (1, [])):
        run.set("checkpoint", save_steps=steps)
        # More often than now, whatever it is now.
        assert [knob.options.removeprefix("--set checkpoint.save_steps=") for knob in found(run)["memory_leak"].knobs] == told
    other = RecordedRun(run.folder.with_name("other"), ranks=1)
    for update in range(90):
        # Longer samples now and then raise a peak, and are no leak.
        other.trained(1, peak=GIB + (update // 10) * 2**24)
    assert "memory_leak" not in found(other)


def test_the_time_until_memory_is_full_is_that_of_the_leak_alone(run: RecordedRun) -> None:
    """Not of what the first updates take, nor of the process before a resume."""
    for update in range(60):
        run.trained(1, peak=GIB + 2**29 + update * 2**20)
    for update in range(90):
        run.trained(1, peak=(2**29 if update < 3 else GIB) + update * 2**20)
    finding = found(run)["memory_leak"]
    # 1 MiB an update: 3 GiB are left, less what the 90 have taken.
    assert finding.details[0].startswith("at this rate a rank's 4.0 GiB are full about 2,983 updates on")
    assert finding.evidence[0].what == "peak memory 0.5 GiB at update 61, 1.1 GiB at update 150"


def test_saves_rows_and_early_ends(run: RecordedRun) -> None:
    run.trained(10, dropped_rows={"too_long": 2})
    run.event("save_failed", update=5, rank=0, reason="[Errno 28] No space left on device")
    run.event("empty_update", update=6, reason="no supervised token")
    run.event("early_stop", update=10, total_updates=100)
    run.ended(0, "done")
    kinds = found(run)
    assert (kinds["disk_full"].severity, kinds["disk_full"].update) == (WRONG, 5) and kinds["disk_full"].what.endswith("none was saved since")
    assert kinds["empty_updates"].update == 6 and "20 rows were left out: 20 too_long" in kinds["dropped_rows"].what
    assert "it ended after update 10 of 100" in kinds["early_stop"].what
    run.event("checkpoint", update=10, path="update_00000010")
    assert found(run)["disk_full"].severity == NOTE, "saved since then"
    run.event("launch_started", attempt=2, world_size=2)
    run.trained(5, attempt=2)
    run.ended(0, "done", attempt=2)
    assert "early_stop" not in found(run), "a resume trained on"


def test_overflows_and_memory_that_is_nearly_full(run: RecordedRun) -> None:
    run.trained(10, peak=4 * GIB)
    for update in range(6):
        run.event("overflow", update=update, reason="overflow", loss_scale=1024.0)
    run.ended(0, "done")
    kinds = found(run)
    assert kinds["overflow"].severity == WRONG and "6 of 16 updates overflowed" in kinds["overflow"].what
    assert "has held 4.0 GiB of the 4.0 GiB" in kinds["memory_nearly_full"].what


def test_a_run_of_an_earlier_version_is_read_too(run: RecordedRun) -> None:
    """Lines without phases tell of their own seconds."""
    run.trained(20)
    old = {"data_wait_seconds": 0.4, "seconds_forward": 0.2, "seconds_backward": 0.3, "seconds_step": 0.1}
    for line in run.updates:
        for name in ("phases", "phase_seconds", "phase_updates", "schema"):
            del line[name]
        line.update(old)
    run.ended(0, "done")
    assert "40% of the time is waiting for data" in found(run)["slow_data"].what


def test_a_running_run_that_logs_nothing(run: RecordedRun) -> None:
    run.trained(10, seconds=2.0)
    seen = dataclasses.replace(look(run.write()), is_running=True)
    last = run.updates[-1]["time"]
    assert standing_still(seen, now=last + 50.0) is None
    finding = standing_still(seen, now=last + 300.0)
    assert finding is not None and finding.severity == WRONG and "nothing was logged for 0:05:00, after update 10; usually it takes 2 s" in finding.what
    assert "the watchdog ends it after 0:30:00" in finding.details[0]
    assert standing_still(dataclasses.replace(seen, is_running=False), now=last + 300.0) is None


def test_communication_beyond_the_plan_is_told_earlier(run: RecordedRun) -> None:
    run.trained(20, shares=waiting("communication", 0.15))
    run.ended(0, "done")
    finding = found(run)["slow_communication"]
    assert finding.knobs[0].options == "--set zero.overlap_comm=true"
    run.files["ds_config.json"] = '{"zero_optimization": {"overlap_comm": true}}'
    assert not any("overlap_comm" in knob.options for knob in found(run)["slow_communication"].knobs), "as stage 3 has it unasked"
    del run.files["ds_config.json"]
    assert "0.15 s an update; the plan expected 0.05 s" in finding.what and "slower than the plan thinks" in finding.causes[0]
    run.memory["forecast"]["communication_s"] = 0.14
    assert "slow_communication" not in found(run)


def test_ranks_that_take_turns_or_save_are_not_named(tmp_path: Path) -> None:
    """A balanced run names nobody, and rank 0 has more to do at a checkpoint in any run."""
    late = {"caused_idle_seconds": 0.3, "late_phase": "checkpoint", "cost": 1.0}
    early = {"caused_idle_seconds": 0.0, "late_phase": "", "cost": 1.0}
    run = RecordedRun(tmp_path / "saving", ranks=2)
    run.trained(20, shares=waiting("idle", 0.15), of_rank=[late, early])
    assert "slow_rank" not in found(run) and "100% of that for rank 0 on localhost, late in checkpoint" in found(run)["imbalance"].what
    run = RecordedRun(tmp_path / "turns", ranks=2)
    late["late_phase"] = "backward"
    for update in range(20):
        run.trained(1, shares=waiting("idle", 0.15), of_rank=[late, early] if update % 2 else [early, late])
    assert "slow_rank" not in found(run) and "each for another" in found(run)["imbalance"].what
